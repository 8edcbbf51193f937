"""HTTP: its codec, the server and gateway that receive, the client that sends."""
