from tests.support.server import _broker_world, broker_server, broker_world

__all__ = ["_broker_world", "broker_server", "broker_world"]
