//! The words of a command about a run: the application first, then numbers.

use crate::args::{ClientArgs, NamedArgs};
use crate::exit::Failure;
use posse_wire::names;

/// A word of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// No name of an application begins with a digit.
    Number(u64),
    /// An application, and with APP/ID one of its executors.
    App(String, Option<u64>),
}

/// `NUMBER`, `APP` or `APP/ID`.
pub fn word(text: &str) -> Result<Word, String> {
    if let Ok(number) = text.parse() {
        return Ok(Word::Number(number));
    }
    // No name begins with one either.
    if text.starts_with(|c: char| c == '-' || c == '+' || c.is_ascii_digit()) {
        return Err("expected a whole number, or a name, which begins with a letter".to_owned());
    }
    app_and_executor(text).map(|(app, id)| Word::App(app, id))
}

/// `NAME` or `NAME/ID`.
pub fn app_and_executor(text: &str) -> Result<(String, Option<u64>), String> {
    let (app, id) = match text.split_once('/') {
        Some((app, id)) => {
            let id = id.parse().map_err(|_| format!("`{id}` is not the id of an executor"))?;
            (app, Some(id))
        }
        None => (text, None),
    };
    match names::app_name_error(app) {
        Some(error) => Err(error),
        None => Ok((app.to_owned(), id)),
    }
}

impl ClientArgs {
    /// The run with the application that the first word names, if it does, and the numbers behind it.
    ///
    /// # Errors
    /// The application is named twice, or a later word is no number.
    pub fn with_words(&self, words: &[Word]) -> Result<(Self, Vec<u64>), Failure> {
        let mut client = self.clone();
        let mut numbers = Vec::new();
        for (i, word) in words.iter().enumerate() {
            match word {
                Word::Number(number) => numbers.push(*number),
                Word::App(app, id) if i == 0 && self.app.is_none() => {
                    client.app = Some(app.clone());
                    numbers.extend(id);
                }
                Word::App(app, _) if i == 0 => {
                    return Err(Failure::usage(format!(
                        "name the application by the first word, {app}, or by --app, not by both"
                    )));
                }
                Word::App(word, _) => {
                    return Err(Failure::usage(format!(
                        "{word}: only the first word may be a name, the application's; a group is named by --group"
                    )));
                }
            }
        }
        Ok((client, numbers))
    }

    /// As `with_words`, for a command that takes at most one number; `what` it is.
    ///
    /// # Errors
    /// As `with_words`, and if there are more numbers.
    pub fn with_number(&self, words: &[Word], what: &str) -> Result<(Self, Option<u64>), Failure> {
        match self.with_words(words)? {
            (client, numbers) if numbers.len() < 2 => Ok((client, numbers.first().copied())),
            (_, numbers) => {
                Err(Failure::usage(format!("expected one {what}, and there are {}", numbers.len())))
            }
        }
    }
}

impl NamedArgs {
    /// The run.
    ///
    /// # Errors
    /// As `with_words`, and if there is a number.
    pub fn client(&self) -> Result<ClientArgs, Failure> {
        match self.client.with_words(&self.words)? {
            (client, numbers) if numbers.is_empty() => Ok(client),
            (_, numbers) => Err(Failure::usage(format!(
                "unexpected argument {}: the name of an application begins with a letter",
                numbers[0]
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_application_is_the_first_word_or_the_flag() {
        let wc = || Some("wc".to_owned());
        for (flag, words, want) in [
            (None, "", Ok((None, vec![]))),
            (None, "2 5", Ok((None, vec![2, 5]))),
            (None, "wc", Ok((wc(), vec![]))),
            (None, "wc 2 5", Ok((wc(), vec![2, 5]))),
            (None, "wc/2", Ok((wc(), vec![2]))),
            (wc(), "2", Ok((wc(), vec![2]))),
            (wc(), "wc 2", Err("not by both")),
            (None, "2 wc", Err("only the first word may be a name")),
            (None, "wc big 2", Err("a group is named by --group")),
        ] {
            let client = ClientArgs { app: flag, ..ClientArgs::default() };
            let words: Vec<Word> = words.split_whitespace().map(|one| word(one).unwrap()).collect();
            match (client.with_words(&words), want) {
                (Ok((client, numbers)), Ok(want)) => assert_eq!((client.app, numbers), want),
                (Err(failure), Err(part)) => assert!(failure.message.contains(part), "{failure}"),
                (got, want) => panic!("{words:?}: {got:?} instead of {want:?}"),
            }
        }
        for (text, part) in
            [("-1", "a whole number"), ("3x", "a whole number"), ("Wc", "not a name")]
        {
            assert!(word(text).unwrap_err().contains(part), "{text}");
        }
        let client = ClientArgs::default();
        let named = NamedArgs { client: client.clone(), words: vec![Word::Number(1)] };
        assert!(named.client().is_err());
        assert!(client.with_number(&[Word::Number(1), Word::Number(2)], "ID").is_err());
    }
}
