"""From a bundle's programs on a device to an engine that may be used: proven, warm, recorded."""

from contextlib import ExitStack

from dflash_engines.bundle import Bundle
from dflash_engines.contract import Limits
from dflash_engines.device.device import Device
from dflash_engines.device.engine import DeviceEngine, Pair, Settings
from dflash_engines.device.programs import DevicePrograms
from dflash_engines.device.proof import prove
from dflash_engines.golden import FILE, Golden
from dflash_engines.host_engine import declared_programs
from dflash_engines.manifest import Manifest


def pair_of(bundle: Bundle) -> Pair:
    """What an engine must know of a bundle's pair."""
    manifest: Manifest = bundle.manifest
    return Pair(
        programs=declared_programs(manifest), geometry=manifest.geometry, mask_token_id=manifest.mask_token_id,
        bundle=bundle,
    )  # fmt: skip


def settings_for(limits: Limits) -> Settings:
    """Batches in powers of two, so that a few requests don't pay for all slots; plain rows in the smallest shape."""
    powers = (2**i for i in range(limits.max_batch.bit_length()))
    batches = tuple(sorted({*(count for count in powers if count < limits.max_batch), limits.max_batch}))
    return Settings(batches=batches, plain_rows=max(2, min(limits.block_sizes)))


def ready_engine(
    bundle: Bundle, device: Device, programs: DevicePrograms, limits: Limits, settings: Settings
) -> DeviceEngine:
    """The engine, once the golden cases passed and every kernel is compiled. Raises EngineError; then nothing stays."""
    with ExitStack() as failed:
        engine = DeviceEngine(pair_of(bundle), device, programs, limits, settings)
        failed.callback(engine.close)
        prove(engine, Golden.load(bundle.file(FILE)))
        engine.warm([name for name in bundle.manifest.programs if name.startswith("accept")])
        failed.pop_all()
    return engine
