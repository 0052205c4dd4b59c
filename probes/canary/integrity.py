"""Is the answer the right one? Codes copied from the prompt, a reference answer, signs of garbage. Pure; only scores leave the process.

The verdicts, the gravest first:

* `crosstalk`: a code of another canary is in the answer: KV of another request was read.
* `mismatch`: a code that had to be copied is missing, or the answer contradicts the reference: both were sure, of different tokens.
* `empty`, `degenerate`: no text at all; repetition, U+FFFD or control characters that no model means to write.
* `drift`: signs without a proof. Greedy answers are not bit-stable across batch shapes, so a late difference alone is none.
* `ok`: all codes copied, or the reference agrees.
* `unknown`: nothing to go by. A model that cannot copy (a random one, a small base model) always ends here unless a reference is given.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from probes.canary.anchors import codes_in
from probes.canary.answer import Answer
from probes.canary.prompt import Prompt
from probes.reasons import Reason
from probes.result import Integrity

Verdict = Literal["ok", "drift", "mismatch", "crosstalk", "degenerate", "empty", "unknown"]

SURE = math.log(0.7)
"""Two runs that give different tokens this much cannot both be near a tie: numerical noise does not move a probability by 0.4."""
DRIFT_NATS = 0.5
"""The largest difference of a log probability on the common prefix that is still noise."""
ENOUGH_COMMON = 0.5
REPETITION = 0.8
FEW = 3
"""Characters that no model means to write; fewer can be a cut of the tokenizer."""

_WORD = re.compile(r"\S+")
_NGRAM = 3


def judge(prompt: Prompt, answer: Answer, *, required: bool = False, reference: Answer | None = None, exact: bool = False) -> Integrity:
    """The verdict on one whole answer. `required`: a missing code is a mismatch. `exact`: the engine promises batch invariance, so that any
    difference from the reference is one."""
    text = text_of(answer)
    codes = codes_in(text)
    found = sum(anchor in codes for anchor in prompt.anchors)
    foreign = codes - set(prompt.anchors) - (codes_in(prompt.content) if isinstance(prompt.content, str) else set())
    compared = compare(answer, reference) if reference is not None else None
    repetition, replacements, controls = repetition_of(text), text.count("\ufffd"), _controls(text)
    verdict, why = _verdict(_Seen(text, bool(answer.token_ids), len(foreign), found, len(prompt.anchors), compared, repetition,
                                  replacements, controls), required=required, exact=exact)
    return Integrity(
        verdict=verdict, why=why,
        anchors=(found, len(prompt.anchors)) if prompt.anchors else None,
        first_token=compared.first_equal if compared else None,
        common_prefix=compared.share if compared else None,
        logprob_drift=compared.drift if compared else None,
        repetition=repetition, replacement_characters=replacements,
    )


def reason_of(integrity: Integrity | None) -> Reason | None:
    """The reason a run ends with whose delivery was good; None where integrity does not speak against it."""
    return Reason.WRONG_CONTENT if integrity is not None and integrity.verdict in ("mismatch", "crosstalk") else None


@dataclass(frozen=True)
class Comparison:
    """An answer beside a reference: `common` of `total` units agree from the start. `drift` is the largest difference of a log probability
    on them; `firm`: where they part, both were sure."""

    common: int
    total: int
    longer: bool
    drift: float | None
    firm: bool

    @property
    def share(self) -> float:
        """Common part of the reference."""
        return self.common / self.total if self.total else 0.0

    @property
    def first_equal(self) -> bool:
        """Whether the first unit agrees."""
        return self.common > 0 or self.total == 0

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return self.common == self.total and not self.longer


def compare(answer: Answer, reference: Answer) -> Comparison:
    """Compare by token ids where both have them, by the texts of their tokens where both have log probabilities, else by characters."""
    ours, theirs = _units(answer, reference)
    common = next((index for index, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    lp_ours = [value for _, value in answer.logprobs] if len(answer.logprobs) == len(ours) else []
    lp_theirs = [value for _, value in reference.logprobs] if len(reference.logprobs) == len(theirs) else []
    differences = [abs(a - b) for a, b in zip(lp_ours[:common], lp_theirs[:common], strict=False)]
    parts = common < min(len(lp_ours), len(lp_theirs)) and ours[common] != theirs[common]
    firm = parts and lp_ours[common] > SURE and lp_theirs[common] > SURE
    return Comparison(common, len(theirs), len(ours) > len(theirs), max(differences) if differences else None, firm)


def text_of(answer: Answer) -> str:
    """All that the model wrote: reasoning, too, since a failed transfer may leave only that."""
    return "".join(answer.reasoning) + "\n" + "".join(answer.content)


def repetition_of(text: str) -> float:
    """The share of the answer's trigrams that came before: of words, or of characters where there are few words."""
    units: Sequence[str] = _WORD.findall(text)
    if len(units) < 2 * _NGRAM:
        units = "".join(units)
    total = len(units) - _NGRAM + 1
    if total < _NGRAM:
        return 0.0
    return 1 - len({tuple(units[at:at + _NGRAM]) for at in range(total)}) / total


@dataclass(frozen=True)
class _Seen:
    text: str
    has_ids: bool
    foreign: int
    found: int
    asked: int
    compared: Comparison | None
    repetition: float
    replacements: int
    controls: int


def _verdict(seen: _Seen, *, required: bool, exact: bool) -> tuple[Verdict, str]:
    if seen.foreign:
        return "crosstalk", f"{seen.foreign} codes of another canary are in the answer"
    wrong = _wrong(seen, required=required, exact=exact)
    if wrong:
        return "mismatch", wrong
    if not seen.text.strip() and not seen.has_ids:
        return "empty", "the answer has no text"
    copied = bool(seen.asked) and seen.found == seen.asked
    garbage = _garbage(seen, copied=copied)
    if garbage:
        return "degenerate", garbage
    drift = _drift(seen)
    if drift:
        return "drift", drift
    if copied or seen.compared is not None:
        return "ok", ""
    if seen.asked:
        return "unknown", f"none of {seen.asked} codes was copied: set anchors to required when this model can, or off when it cannot"
    return "unknown", "no codes were asked for and there is no reference"


def _wrong(seen: _Seen, *, required: bool, exact: bool) -> str:
    if required and seen.found < seen.asked:
        return f"{seen.found} of {seen.asked} codes of the prompt are in the answer"
    if seen.compared is not None and exact and not seen.compared.equal:
        return f"the reference is left after {seen.compared.common} of {seen.compared.total}, though batch invariance is declared"
    if seen.compared is not None and seen.compared.firm:
        return f"after {seen.compared.common} of {seen.compared.total} the reference and the answer are both sure, of different tokens"
    return ""


def _garbage(seen: _Seen, *, copied: bool) -> str:
    if seen.replacements >= FEW:
        return f"{seen.replacements} replacement characters (U+FFFD)"
    if seen.controls >= FEW:
        return f"{seen.controls} control characters"
    if seen.repetition >= REPETITION and not copied:
        return f"{seen.repetition:.0%} of the answer repeats itself"
    return ""


def _drift(seen: _Seen) -> str:
    compared = seen.compared
    if compared is not None and not compared.first_equal:
        return "the first token is not that of the reference"
    if compared is not None and compared.drift is not None and compared.drift > DRIFT_NATS:
        return f"log probabilities differ by up to {compared.drift:.2f} on the common prefix"
    if compared is not None and compared.share < ENOUGH_COMMON:
        return f"only {compared.common} of {compared.total} agree with the reference"
    if 0 < seen.found < seen.asked:
        return f"{seen.found} of {seen.asked} codes of the prompt are in the answer"
    return ""


def _units(answer: Answer, reference: Answer) -> tuple[Sequence[object], Sequence[object]]:
    if answer.token_ids and reference.token_ids:
        return answer.token_ids, reference.token_ids
    if answer.logprobs and reference.logprobs:
        return [token for token, _ in answer.logprobs], [token for token, _ in reference.logprobs]
    return text_of(answer), text_of(reference)


def _controls(text: str) -> int:
    return sum(unicodedata.category(char) == "Cc" and char not in "\n\r\t" for char in text)
