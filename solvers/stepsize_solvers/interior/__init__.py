"""One interior-point iteration for problems with matrix inequalities, and two methods with steps of their own.

``driver`` is the iteration.  Its problems are the condition 𝒬(DBD) ⪯ D (``condition``), the largest t with
aD − 𝒬(DBD) ⪰ tE (``floor``, ``whitened``) and families of inequalities (``stepsize_solvers.families``).

A Newton step of the condition is read in four files: ``driver`` (the loop, its target and length), ``condition`` (the
problem, and its system for conjugate gradients), ``frame`` (one D, the derivatives and the scaling) and ``dense`` (the
system of small problems).

Steps of their own have log det of the metric (``metric``, damped Newton steps), a diagonal D (``diagonal``, a path in
d unknowns), a low rank and balancing (``stepsize_solvers.large``); their loop is ``Progress.follow``.  Cutting surfaces
(``families.cuts``) solve one relaxation after the other.
"""
