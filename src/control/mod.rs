//! What a driver or a person talks to while posse runs. Decides nothing.
