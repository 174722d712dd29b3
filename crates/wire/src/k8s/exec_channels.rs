//! The messages of `pods/exec`: channels of a WebSocket (protocols v4 and v5), and how a command ended.

use serde_json::Value;

/// The subprotocols that we speak, the best one first. v5 adds the closing of a single channel
/// (KEP-4006); nothing else differs.
pub const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

/// The first byte of the messages with input.
pub const STDIN: u8 = 0;
/// v5: the input has ended.
pub const STDIN_END: [u8; 2] = [255, STDIN];
/// The first byte of the messages with the size of the terminal.
const RESIZE: u8 = 4;

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    pub columns: u16,
    pub rows: u16,
}

/// The message that gives the command's terminal this size.
pub fn resize(TerminalSize { columns, rows }: TerminalSize) -> Vec<u8> {
    let mut message = vec![RESIZE];
    message.extend(format!(r#"{{"Width":{columns},"Height":{rows}}}"#).bytes());
    message
}

/// The first byte of each message of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    Stdout,
    Stderr,
    /// How the command ended: a `metav1.Status`, sent once.
    Error,
}

impl Channel {
    /// Splits a message into its channel and content; `None` for an unknown channel.
    pub fn split(message: &[u8]) -> Option<(Self, &[u8])> {
        let (number, content) = message.split_first()?;
        let channel = match number {
            1 => Self::Stdout,
            2 => Self::Stderr,
            3 => Self::Error,
            _ => return None,
        };
        Some((channel, content))
    }
}

/// How a command in a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandEnd {
    /// It ran and exited with this code.
    Exited(u8),
    /// It could not be started, or its node lost it. The text is the server's.
    Failed(String),
}

/// Reads the message of the error channel. The exit code is a cause of the Status
/// (k8s.io/kubelet, `remotecommand`: reason `NonZeroExitCode`, cause `ExitCode`).
pub fn command_end(content: &[u8]) -> CommandEnd {
    let status: Value = serde_json::from_slice(content).unwrap_or_default();
    let code = || {
        let mut causes = status["details"]["causes"].as_array()?.iter();
        let cause = causes.find(|cause| cause["reason"] == "ExitCode")?;
        cause["message"].as_str()?.parse::<i64>().ok()
    };
    match (status["status"].as_str(), code()) {
        (None, _) => {
            let text = String::from_utf8_lossy(content);
            CommandEnd::Failed(format!("the status of the command cannot be read: {text}"))
        }
        (Some("Success"), _) => CommandEnd::Exited(0),
        // Exit codes are bytes, but the field may contain any number.
        (Some(_), Some(code)) if status["reason"] == "NonZeroExitCode" => {
            CommandEnd::Exited(u8::try_from(code & 0xff).unwrap_or(u8::MAX))
        }
        (Some(_), _) => {
            CommandEnd::Failed(status["message"].as_str().unwrap_or_default().to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_split_by_their_first_byte() {
        for (message, want) in [
            (&b"\x01out"[..], Some((Channel::Stdout, &b"out"[..]))),
            (b"\x02", Some((Channel::Stderr, b""))),
            (b"\x03{}", Some((Channel::Error, b"{}"))),
            (b"\x00stdin", None),
            (b"\xff\x01", None),
            (b"", None),
        ] {
            assert_eq!(Channel::split(message), want, "{message:?}");
        }
    }

    #[test]
    fn a_resize_is_json_behind_its_channel() {
        let message = resize(TerminalSize { columns: 132, rows: 43 });
        assert_eq!(message, b"\x04{\"Width\":132,\"Height\":43}");
    }

    #[test]
    fn the_end_of_a_command_is_read() {
        let failed = |text: &str| CommandEnd::Failed(text.to_owned());
        for (content, want) in [
            (r#"{"metadata":{},"status":"Success"}"#, CommandEnd::Exited(0)),
            (
                r#"{"status":"Failure","message":"command terminated with non-zero exit code",
                    "reason":"NonZeroExitCode",
                    "details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#,
                CommandEnd::Exited(7),
            ),
            (
                r#"{"status":"Failure","message":"not in $PATH","reason":"InternalError",
                    "details":{"causes":[{"message":"x"}]},"code":500}"#,
                failed("not in $PATH"),
            ),
            (
                r#"{"status":"Failure","reason":"NonZeroExitCode","message":"no number",
                    "details":{"causes":[{"reason":"ExitCode","message":"x"}]}}"#,
                failed("no number"),
            ),
            ("killed", failed("the status of the command cannot be read: killed")),
        ] {
            assert_eq!(command_end(content.as_bytes()), want, "{content}");
        }
    }
}
