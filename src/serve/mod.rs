//! One small HTTP/1.1 server on TCP or a unix socket, with limits, for control, dev and stage.
