"""What all searches share: what fits, answers, clock and incumbent, shapes of candidates."""
