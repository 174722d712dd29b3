//! The report of `posse check`, and its text and JSON.

use serde_json::{Value, json};

use crate::exit::Code;
use crate::listing::Listing;
use posse_base::text::one_line;

/// How one check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Ok,
    /// A run works; the message is for information.
    Note,
    /// A run starts, but with a restriction.
    Warning,
    /// A run would end at once with this exit code.
    Failed(Code),
    /// Not permitted, or not supported by the server.
    Unknown,
    /// There was nothing to check.
    Skipped,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Failed(_) => "failed",
            Self::Unknown => "unknown",
            Self::Skipped => "skipped",
        }
    }
}

/// One check and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub name: String,
    pub status: Status,
    pub message: String,
    /// What to do; may have several lines for copying.
    pub remedy: Option<String>,
}

/// All checks, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report(pub Vec<Check>);

impl Report {
    /// Adds a check without a remedy.
    pub fn add(&mut self, name: &str, status: Status, message: impl Into<String>) {
        self.push(name, status, message.into(), None);
    }

    /// Adds a check with a remedy.
    pub fn advise(
        &mut self,
        name: &str,
        status: Status,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.push(name, status, message.into(), Some(remedy.into()));
    }

    /// Sets the remedy of the last check.
    pub fn remedy(&mut self, remedy: String) {
        if let Some(check) = self.0.last_mut() {
            check.remedy = Some(remedy);
        }
    }

    fn push(&mut self, name: &str, status: Status, message: String, remedy: Option<String>) {
        self.0.push(Check { name: name.to_owned(), status, message, remedy });
    }

    /// The exit code of the first failed check.
    pub fn code(&self) -> Code {
        let failed = self.0.iter().find_map(|check| match check.status {
            Status::Failed(code) => Some(code),
            Status::Ok | Status::Note | Status::Warning | Status::Unknown | Status::Skipped => None,
        });
        failed.unwrap_or(Code::Clean)
    }
}

impl Listing for Report {
    /// One line for each check, followed by its remedy.
    fn table(&self, _is_wide: bool) -> String {
        let width = self.0.iter().map(|check| check.name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for Check { name, status, message, remedy } in &self.0 {
            let status = status.word();
            text.push_str(&format!("{status:8} {name:width$}  {}\n", one_line(message)));
            for line in remedy.iter().flat_map(|remedy| remedy.lines()) {
                text.push_str(&format!("    {line}\n"));
            }
        }
        text
    }

    /// `{"ok":…,"checks":[{"check":…,"status":…,"message":…,"remedy":…}]}`
    fn json(&self) -> Value {
        let checks = self.0.iter().map(|Check { name, status, message, remedy }| {
            json!({"check": name, "status": status.word(), "message": message, "remedy": remedy})
        });
        json!({"ok": self.code() == Code::Clean, "checks": checks.collect::<Value>()})
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|check| check.name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_sets_the_exit_code() {
        let mut report = Report::default();
        report.add("reach", Status::Ok, "it answers");
        report.add("quota", Status::Warning, "too\nlittle");
        assert_eq!(report.code(), Code::Clean);
        report.advise("rights", Status::Failed(Code::Server), "missing: a", "do\n  this");
        report.add("template a", Status::Failed(Code::TemplateRefused), "no");
        assert_eq!(report.code(), Code::Server);
        assert_eq!(
            report.table(false),
            "ok       reach       it answers\nwarning  quota       too little\n\
             failed   rights      missing: a\n    do\n      this\nfailed   template a  no\n"
        );
        let json = report.json();
        assert_eq!(json["ok"], false);
        assert_eq!(json["checks"][2]["remedy"], "do\n  this");
        assert_eq!(json["checks"][3]["status"], "failed");
        assert!(json["checks"][0]["remedy"].is_null());
    }
}
