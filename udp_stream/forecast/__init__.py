"""Forecasts: what counts and earlier releases tell of the speeds of a slot, for every HAT in it. It never sees a speed.

`model` goes from counts to features, prior, cell effects learnt from releases, and the memory of a day. `coefficients`
are its trained numbers. All of it is post-processing of what is public: it costs no budget.
"""
