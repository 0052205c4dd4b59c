"""Short common words: with a blank before it, each is one token for GPT-4, Llama 3, Qwen 3, DeepSeek V3 and Gemma (tried with their
tokenizers)."""

from __future__ import annotations

WORDS = tuple("""
time year people way day man thing woman life child world school state family student group country problem hand part place case week
company system program question work government number night point home water room mother area money story fact month lot right study
book eye job word business issue side kind head house service friend father power hour game line end member law car city community name
president team minute idea kid body information back parent face others level office door health person art war history party result
change morning reason research girl guy moment air teacher force education foot boy age policy music market sense nation plan college
interest death course someone experience table step church field rate road effort use data need show form light land paper space ground
support event official matter center couple site project activity star role north south east west red blue green black white brown gold
silver fire wind rain snow stone wood iron glass river lake sea hill tree leaf seed root fruit bread milk salt sugar rice meat fish bird
horse dog cat bear lion wolf king queen prince lady lord ship boat train bridge wall window floor roof street garden farm village town
park shop bank store hotel hall court board chair bed lamp clock phone key bag box cup plate knife coat hat shoe ring song dance film
play ball race goal score prize test class lesson page letter note list map picture card sign mark price cost sale trade tax bill debt
cash loan fund share stock profit loss gain
""".split())  # noqa: SIM905 - a list literal would take a page

NONCE_WORDS = WORDS[:256]
"""One word for each value of a byte."""
