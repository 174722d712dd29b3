//! The lines that `posse map` runs.

use std::fs::File;
use std::io::{BufRead, Read as _, Stdin};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;

use crossbeam_channel::Sender;

/// The longest line of the input, in bytes.
const LINE_BYTES_MAX: usize = 8 << 10;

/// How much of the input is read at once to count its lines, in bytes.
const CHUNK_BYTES: usize = 1 << 16;

/// A line of the input with its number, or why it cannot be run.
pub(super) type Line = Result<(u64, String), String>;

/// Reads the input until its end or its first wrong line. Blank lines only count.
pub(super) fn read_lines(mut input: impl BufRead, lines: &Sender<Line>) {
    for n in 1.. {
        let line = match read_line(&mut input) {
            Ok(None) => return,
            Ok(Some(text)) if text.trim().is_empty() => continue,
            Ok(Some(text)) => Ok((n, text)),
            Err(what) => Err(format!("line {n} {what}")),
        };
        let is_wrong = line.is_err();
        if lines.send(line).is_err() || is_wrong {
            return;
        }
    }
}

/// The lines of an input that is a file: reading it here takes nothing away from who reads the lines.
pub(super) fn n_lines(input: &Stdin) -> Option<u64> {
    let file = File::from(input.as_fd().try_clone_to_owned().ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut offset = rustix::fs::tell(&file).ok()?;
    let (mut n, mut is_blank) = (0, true);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let n_bytes = file.read_at(&mut chunk, offset).ok()?;
        if n_bytes == 0 {
            return Some(n + u64::from(!is_blank));
        }
        offset += n_bytes as u64;
        for byte in &chunk[..n_bytes] {
            if *byte == b'\n' {
                n += u64::from(!is_blank);
                is_blank = true;
            } else {
                is_blank &= byte.is_ascii_whitespace();
            }
        }
    }
}

fn read_line(input: &mut impl BufRead) -> Result<Option<String>, String> {
    let mut bytes = Vec::new();
    let mut limited = input.take(LINE_BYTES_MAX as u64 + 1);
    let n_bytes = limited.read_until(b'\n', &mut bytes);
    if n_bytes.map_err(|error| format!("cannot be read: {error}"))? == 0 {
        return Ok(None);
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    } else if bytes.len() > LINE_BYTES_MAX {
        return Err(format!("is longer than {LINE_BYTES_MAX} bytes: put it into a script"));
    }
    let text = String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())?;
    match text.as_str() {
        text if text.contains('\0') => Err("has a NUL character".to_owned()),
        _ => Ok(Some(text)),
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::bounded;

    use super::*;

    fn lines(input: &[u8]) -> Vec<Line> {
        let (sender, lines) = bounded(100);
        read_lines(input, &sender);
        drop(sender);
        lines.iter().collect()
    }

    #[test]
    fn a_wrong_line_is_named_with_its_number() {
        let long = "x".repeat(LINE_BYTES_MAX + 1);
        for (wrong, part) in [
            (&b"\xff\n"[..], "line 3 is not UTF-8"),
            (b"a\0b\n", "line 3 has a NUL"),
            (long.as_bytes(), "line 3 is longer than 8192 bytes"),
        ] {
            let all = lines(&[b"echo 1\necho 2\n", wrong, b"\necho 4\n"].concat());
            assert_eq!(all.len(), 3, "nothing after the wrong line is run");
            assert_eq!(all[1], Ok((2, "echo 2".to_owned())));
            assert!(all[2].as_ref().unwrap_err().starts_with(part), "{:?}", all[2]);
        }
        let text = |n: u64, text: &str| Ok((n, text.to_owned()));
        assert_eq!(lines(b"\na\n  \n\t\nb\n\n"), [text(2, "a"), text(5, "b")]);
        let longest = "x".repeat(LINE_BYTES_MAX);
        assert_eq!(lines(longest.as_bytes()), [Ok((1, longest.clone()))]);
        assert_eq!(lines(format!("{longest}\n").as_bytes()), [Ok((1, longest))]);
        assert_eq!(lines(b""), []);
    }
}
