//! Replaces what is not Unicode in JSON by U+FFFD, as Go's decoder does.

/// Replaces each byte that is not UTF-8, and each escape of half a surrogate pair.
pub(super) fn repair(body: &mut Vec<u8>) {
    if std::str::from_utf8(body).is_err() {
        let mut text = String::with_capacity(body.len());
        for chunk in body.utf8_chunks() {
            text.push_str(chunk.valid());
            text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
        }
        *body = text.into_bytes();
    }
    let mut at = 0;
    while let Some(next) = body.get(at..).and_then(|rest| rest.iter().position(|c| *c == b'\\')) {
        at += next;
        at += match (escaped(body, at), escaped(body, at + ESCAPE_BYTES)) {
            (None, _) => 2,
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 2 * ESCAPE_BYTES,
            (Some(0xD800..=0xDFFF), _) => {
                body[at..at + ESCAPE_BYTES].copy_from_slice(br"\uFFFD");
                ESCAPE_BYTES
            }
            (Some(_), _) => ESCAPE_BYTES,
        };
    }
}

const ESCAPE_BYTES: usize = r"\uXXXX".len();

/// The number in the escape `\uXXXX` at a position.
fn escaped(body: &[u8], at: usize) -> Option<u32> {
    let digits = body.get(at..at + ESCAPE_BYTES)?.strip_prefix(br"\u")?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers of kube-apiserver 1.20 for the data of a ConfigMap.
    #[test]
    fn what_is_not_unicode_is_replaced() {
        for (given, want) in [
            (&b"x\xff\xfey"[..], "x\u{FFFD}\u{FFFD}y"),
            (b"x\xed\xa0\x80y\xe2\x82", "x\u{FFFD}\u{FFFD}\u{FFFD}y\u{FFFD}\u{FFFD}"),
            (br"x\ud800y", r"x\uFFFDy"),
            (br"\udc00\ud83d\ude00\ud83d", r"\uFFFD\ud83d\ude00\uFFFD"),
            (br"\\ud800 \u00e9 \u", r"\\ud800 \u00e9 \u"),
            (br"\", r"\"),
        ] {
            let mut body = given.to_vec();
            repair(&mut body);
            assert_eq!(String::from_utf8_lossy(&body), want);
        }
    }
}
