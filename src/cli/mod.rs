//! Arguments to checked settings, to a run, to an exit code.
