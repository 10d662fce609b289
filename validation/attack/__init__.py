"""The standing attack on the library: random problems of many kinds, judged by referees in exact arithmetic.

    python -m validation.attack                                   # all kinds
    python -m validation.attack --kind scales --seed 1234 --count 1   # one problem again

One module for each kind of attack.  A kind draws a problem from a seed, gives it to the public functions of the library
and has every claim of the answer judged by :mod:`validation.attack.referee`, which uses none of the library's proofs.
"""
