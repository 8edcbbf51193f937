"""What the registry's API is, as an OpenAPI document made of the model in force."""
