//! The only client sockets: configuration, TLS, tokens, verbs, list pages, the watch line reader.
