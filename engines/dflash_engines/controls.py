"""What a request asks of its tokens beyond how they are drawn; neutral unless asked for."""

from dataclasses import dataclass

from dflash_engines.contract import AcceptVariant


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """Rules that edit the logits of every row, drafted or not, before a token is chosen."""

    constrained: bool = False  # a grammar's mask comes with every pass

    @property
    def needs(self) -> AcceptVariant:
        """What an accept program must be able to do for this."""
        return AcceptVariant(grammar_mask=self.constrained)


NEUTRAL = Controls()
