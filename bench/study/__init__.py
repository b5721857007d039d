"""The study: one recipe per published figure, in simulation at the paper's scale, with the paper's figure beside ours.

`recipe` says what a recipe is, `runs` simulates and remembers, `settings` holds what the papers ran on, `sweep` goes
along the bandwidth axis, `figures` draws, `report` writes, `main` does it all; every other file is one paper.
"""
