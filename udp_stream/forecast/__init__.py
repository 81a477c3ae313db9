"""Forecasts: what counts and earlier releases tell of the speeds of a slot, for every HAT in it. It never sees a speed.

`features` reads counts, `prior` turns them into relative speeds, `arrow` and `bank` learn from releases, `memory` joins
them over the slots of a day. All of it is post-processing of what is public: it costs no budget.
"""
