from accel_streams.backends.privateuse1 import PrivateUse1Backend


class NovaBackend(PrivateUse1Backend):
    name = "nova"
    device_type = "nova"
    module = "torch_nova"
    communication_backend = "nova_ccl"
    visible_devices_env = "NOVA_VISIBLE_DEVICES"
    description = "Nova accelerators through torch_nova"
    url = "https://example.com/torch_nova/issues"
