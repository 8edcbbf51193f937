from router.payloads.making import Payload, PayloadMaker

__all__ = ["Payload", "PayloadMaker"]
