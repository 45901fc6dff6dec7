"""Brokers of other kinds beside Aerobee: one module each, all with the interface of `base.Peer`."""
