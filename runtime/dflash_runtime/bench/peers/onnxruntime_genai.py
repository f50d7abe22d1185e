"""onnxruntime-genai: the target as its own model builder wrote it, on the CPU."""

from collections.abc import Callable, Sequence
from pathlib import Path

import onnxruntime_genai as og

from dflash_engines.bundle import Bundle
from dflash_engines.errors import RequestError


def load(bundle: Bundle, path: str | None, threads: int) -> Callable[[Sequence[int], int], list[int]]:
    """The peer `onnxruntime-genai`. Raises RequestError without a folder of its builder."""
    if path is None or not Path(path, "genai_config.json").is_file():
        raise RequestError(
            "the peer onnxruntime-genai needs a folder that its builder wrote: python -m onnxruntime_genai.models."
            "builder -i TARGET -o FOLDER -p fp32 -e cpu, then --peer onnxruntime-genai=FOLDER"
        )
    config = og.Config(path)
    config.overlay(f'{{"model": {{"decoder": {{"session_options": {{"intra_op_num_threads": {threads}}}}}}}}}')
    model, stops = og.Model(config), frozenset(bundle.manifest.stop_token_ids)

    def generate(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
        parameters = og.GeneratorParams(model)
        parameters.set_search_options(do_sample=False, max_length=len(prompt) + max_new_tokens)
        generator = og.Generator(model, parameters)
        generator.append_tokens(list(prompt))
        tokens: list[int] = []
        while len(tokens) < max_new_tokens and not generator.is_done():
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
            if tokens[-1] in stops:
                break
        return tokens

    return generate
