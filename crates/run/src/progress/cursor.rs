//! Follows output to a terminal, to know whether it leaves the cursor at the beginning of an empty line.

/// Where the output is within an escape sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sequence {
    /// Between characters.
    None,
    /// After ESC.
    Escape,
    /// After ESC and characters such as `(`: one more character follows.
    Intermediate,
    /// Within `ESC [ ...`.
    Csi(Csi),
    /// Within a text for the terminal, such as a window title: up to BEL or ESC.
    Text,
}

/// The parameters of a control sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Csi {
    /// The last number; 0 if there is none.
    number: u32,
    /// It begins with a character such as `?`.
    is_private: bool,
    /// One of the numbers is the mode of the alternate screen.
    has_alternate: bool,
}

impl Csi {
    fn end_number(&mut self) {
        // xterm's private modes: the alternate screen, without and with the cursor's position.
        self.has_alternate |= self.is_private && matches!(self.number, 47 | 1047 | 1049);
    }
}

/// The cursor after all output so far.
#[derive(Debug)]
pub(super) struct Cursor {
    sequence: Sequence,
    /// Nothing was printed after the last line feed.
    is_at_line_start: bool,
    /// How many lines below the cursor may have text, because the output moved the cursor up.
    lines_below: u32,
    /// A full-screen program shows its own screen.
    is_alternate: bool,
}

/// The cursor may be anywhere.
const UNKNOWN: u32 = u32::MAX;
/// More line feeds would scroll away what is there.
const LINE_FEEDS_MAX: u32 = 100;

impl Cursor {
    /// At the beginning of an empty line.
    pub(super) fn new() -> Self {
        let sequence = Sequence::None;
        Self { sequence, is_at_line_start: true, lines_below: 0, is_alternate: false }
    }

    /// True if a line that is drawn here and erased later hides nothing.
    pub(super) fn is_on_empty_line(&self) -> bool {
        self.is_at_line_start
            && !self.is_alternate
            && self.lines_below == 0
            && self.sequence == Sequence::None
    }

    /// The line feeds to the next empty line.
    pub(super) fn line_feeds(&self) -> u32 {
        let begun = u32::from(!self.is_at_line_start);
        match self.lines_below {
            UNKNOWN => 1,
            below => below.max(begun).min(LINE_FEEDS_MAX),
        }
    }

    /// The terminal gets these bytes.
    pub(super) fn follow(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.follow_byte(*byte));
    }

    fn follow_byte(&mut self, byte: u8) {
        self.sequence = match (self.sequence, byte) {
            (_, 0x1b) => Sequence::Escape,
            (Sequence::None, _) => {
                self.print(byte);
                Sequence::None
            }
            (Sequence::Escape, b'[') => Sequence::Csi(Csi::default()),
            (Sequence::Escape, b']' | b'P' | b'X' | b'^' | b'_') => Sequence::Text,
            (Sequence::Escape | Sequence::Intermediate, b' '..=b'/') => Sequence::Intermediate,
            (Sequence::Escape, _) => {
                self.escape(byte);
                Sequence::None
            }
            (Sequence::Intermediate, _) | (Sequence::Text, 0x07) => Sequence::None,
            (Sequence::Text, _) => Sequence::Text,
            (Sequence::Csi(csi), _) => self.control(csi, byte),
        };
    }

    fn print(&mut self, byte: u8) {
        match byte {
            b'\n' => {
                self.is_at_line_start = true;
                self.move_down(1);
            }
            b'\t' | b' '.. => self.is_at_line_start = false,
            // A carriage return leaves the line's text where it is.
            _ => {}
        }
    }

    fn escape(&mut self, byte: u8) {
        match byte {
            b'M' => self.move_up(1),
            // A saved position.
            b'8' => self.lines_below = UNKNOWN,
            // The terminal begins anew.
            b'c' => *self = Self::new(),
            _ => {}
        }
    }

    /// One more byte of a control sequence (ECMA-48).
    fn control(&mut self, mut csi: Csi, byte: u8) -> Sequence {
        match byte {
            b'0'..=b'9' => {
                let digit = u32::from(byte - b'0');
                csi.number = csi.number.saturating_mul(10).saturating_add(digit);
            }
            b';' | b':' => {
                csi.end_number();
                csi.number = 0;
            }
            b'<'..=b'?' => csi.is_private = true,
            b'@'..=b'~' => {
                csi.end_number();
                self.end_control(csi, byte);
                return Sequence::None;
            }
            _ => {}
        }
        Sequence::Csi(csi)
    }

    fn end_control(&mut self, csi: Csi, end: u8) {
        let n = csi.number.max(1);
        match end {
            b'h' | b'l' if csi.has_alternate => self.is_alternate = end == b'h',
            _ if csi.is_private => {}
            b'A' | b'F' => self.move_up(n),
            b'B' => {
                self.is_at_line_start = false;
                self.move_down(n);
            }
            b'E' => {
                self.is_at_line_start = true;
                self.move_down(n);
            }
            b'H' | b'f' => {
                self.is_at_line_start = n == 1;
                self.lines_below = UNKNOWN;
            }
            b'd' | b'u' => self.lines_below = UNKNOWN,
            // Nothing is left on the screen, or below the cursor.
            b'J' if csi.number != 1 => self.lines_below = 0,
            _ => {}
        }
    }

    fn move_up(&mut self, n: u32) {
        // The last line is not empty either.
        if self.lines_below == 0 && !self.is_at_line_start {
            self.lines_below = 1;
        }
        self.lines_below = self.lines_below.saturating_add(n);
    }

    fn move_down(&mut self, n: u32) {
        if self.lines_below != UNKNOWN {
            self.lines_below = self.lines_below.saturating_sub(n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_line_may_be_drawn_on() {
        for (output, want) in [
            ("", true),
            ("text", false),
            ("text\n", true),
            ("50%\r", false),
            ("text\n\r", true),
            ("\t", false),
            ("ä\n", true),
            // Colours and the like do not move the cursor.
            ("\x1b[31mred\x1b[0m\n\x1b[0m\x1b[K\x1b[?25h\x1b]0;title\x07\x1b(B", true),
            ("text\n\x1b]0;title\x1b\\", true),
            ("text\n\x1b", false),
            ("text\n\x1b[3", false),
            ("text\n\x1b]0;tit", false),
            // Two bars: the cursor is above the second one, then below it.
            ("one\ntwo\n\x1b[2A", false),
            ("one\ntwo\n\x1b[2Aone\n", false),
            ("one\ntwo\n\x1b[2Aone\ntwo\n", true),
            ("one\ntwo\n\x1b[F\x1b[E", true),
            ("one\ntwo\n\x1b[A\x1b[B", false),
            ("one\ntwo\n\x1b[A\x1b[J", true),
            ("one\n\x1bMone\n", true),
            // `clear`, and a position that nobody knows.
            ("text\x1b[H\x1b[2J\x1b[3J", true),
            ("\x1b[5;1Htext\n", false),
            ("\x1b7text\x1b8\n", false),
            ("\x1b[5;1Htext\n\x1bc", true),
            ("\x1b[?1049h\x1b[2J\n", false),
            ("\x1b[?1;1049htext\n\x1b[?1049l", true),
        ] {
            let mut cursor = Cursor::new();
            cursor.follow(output.as_bytes());
            assert_eq!(cursor.is_on_empty_line(), want, "{output:?}");
        }
    }

    #[test]
    fn line_feeds_lead_to_an_empty_line() {
        for (output, want) in [
            ("", 0),
            ("text", 1),
            ("1\n2\n3\n\x1b[2A", 2),
            ("1\n2\n\x1b[2Atext", 2),
            ("1\n2\x1b[A", 2),
            ("\x1b[9H", 1),
        ] {
            let mut cursor = Cursor::new();
            cursor.follow(output.as_bytes());
            assert_eq!(cursor.line_feeds(), want, "{output:?}");
            cursor.follow("\n".repeat(want as usize).as_bytes());
            assert_eq!(cursor.is_on_empty_line(), !output.contains('H'), "{output:?}");
        }
    }
}
