"""At which temperature the drafter draws, where a request doesn't say."""

from dataclasses import replace

from dflash_engines.manifest import Manifest
from dflash_engines.sampling import SamplingParameters

SHARE = 0.5  # of the answer's temperature; by the table in docs/adaptive.md


def with_draws(sampling: SamplingParameters, draft_temperature: float | None, manifest: Manifest) -> SamplingParameters:
    """`sampling` with the `draft_temperature` asked for; by default a share of its own, if the drafter can draw."""
    if draft_temperature is not None:
        return replace(sampling, draft_temperature=draft_temperature)
    if sampling.draws_drafts or sampling.greedy or "draft_noise" not in manifest.programs:
        return sampling
    return replace(sampling, draft_temperature=SHARE * sampling.temperature)
