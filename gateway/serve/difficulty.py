"""What the classifier says of a request: P(acceptable) by tier."""

from collections.abc import Mapping

import msgspec

from classifier.prompt import Prompt, from_messages, from_text
from classifier.score import Scorer
from gateway.serve.body import PROMPT, Body
from gateway.serve.catalog import Tier

MOST_PARTS = 20_000  # messages and parts of messages that are looked into: about 15 ms of work


class Judge(msgspec.Struct, frozen=True):
    """Calls the scorer; a prompt that cannot be read as text is scored as an empty one, never refused."""

    scorer: Scorer

    def __call__(self, body: Body) -> Mapping[Tier, float]:
        found = self.scorer.difficulty(_prompt(body))
        return {"small": found.small, "large": found.large}


def _prompt(body: Body) -> Prompt:
    raw = bytes(body.fields[PROMPT[body.operation]])
    if raw.count(b'"role"') + raw.count(b'"type"') > MOST_PARTS:  # telling them apart would hold up everybody else
        return from_text("")
    try:
        if body.operation == "chat":
            return from_messages(raw, has_tools="tools" in body.fields, max_tokens=body.max_tokens)
        return from_text(msgspec.json.decode(raw, type=str))
    except (ValueError, msgspec.DecodeError, RecursionError):
        return from_text("")
