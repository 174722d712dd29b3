//! Exit codes, and failures that end a command with one.

use std::fmt;
use std::io;
use std::process::ExitCode;

use posse_run::signals::Signal;
use posse_wire::config::section::ConfigError;
use posse_wire::pod::template::TemplateError;

/// An exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// 0: success.
    Clean,
    /// 1: a command other than `run` failed.
    Failed,
    /// 2: an error in the arguments, the configuration or a template.
    Usage,
    /// 3: at the start, the API server was unreachable or refused, or another live posse holds the
    /// instance.
    Server,
    /// 4: the server refused a template of the file before any of the group's executors existed.
    TemplateRefused,
    /// 10: all work has ended, and executors of a group with `restart: never` failed.
    WorkGivenUp,
    /// 11: a failure budget is exhausted.
    BudgetExhausted,
    /// 12: executors were not confirmed deleted; they are named.
    Remain,
    /// 13: another posse of this application took over.
    TakenOver,
    /// 14: the driver made no call within `driver.silence`.
    DriverSilent,
    /// 128 + the number of the signal that ended posse: 130 for Ctrl-C.
    Signal(Signal),
    /// The driver's exit code, which is not 0; 128 + signal number if a signal killed the driver.
    Driver(u8),
}

impl Code {
    /// The exit code as a number.
    pub fn number(self) -> u8 {
        match self {
            Self::Clean => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Server => 3,
            Self::TemplateRefused => 4,
            Self::WorkGivenUp => 10,
            Self::BudgetExhausted => 11,
            Self::Remain => 12,
            Self::TakenOver => 13,
            Self::DriverSilent => 14,
            Self::Driver(code) => code,
            Self::Signal(signal) => signal.exit_code(),
        }
    }

    /// The exit code of a run, from posse's own code and the driver's. A failure of the driver takes
    /// precedence, except over an exhausted budget.
    pub fn with_driver(self, driver: u8) -> Self {
        match (self, driver) {
            (Self::BudgetExhausted, _) | (_, 0) => self,
            (_, code) => Self::Driver(code),
        }
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code.number())
    }
}

/// Why a command ended early. Printed as `posse: <message>`, unless the message is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: Code,
    pub message: String,
}

impl Failure {
    /// A failure with this code and message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The output cannot be written. A closed pipe is no error: the reader has read enough, as `head`
    /// does, and the command ends without a word.
    pub fn output(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(Code::Clean, "");
        }
        Self::new(Code::Failed, format!("cannot write the output: {error}"))
    }

    /// An error in the arguments or the configuration.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<TemplateError> for Failure {
    fn from(error: TemplateError) -> Self {
        Self::usage(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_code_wins_except_over_an_exhausted_budget() {
        for (own, driver, number) in [
            (Code::Clean, 0, 0),
            (Code::Clean, 7, 7),
            (Code::Remain, 0, 12),
            (Code::Remain, 137, 137),
            (Code::BudgetExhausted, 0, 11),
            (Code::BudgetExhausted, 143, 11),
            (Code::DriverSilent, 0, 14),
            (Code::Server, 1, 1),
        ] {
            assert_eq!(own.with_driver(driver).number(), number, "{own:?} {driver}");
        }
    }

    #[test]
    fn the_documentation_lists_all_codes() {
        let text = include_str!("../docs/CLI.md");
        let table = text.lines().skip_while(|line| !line.starts_with("| code |")).skip(2);
        let rows = table.take_while(|line| line.starts_with('|'));
        let cells = rows.filter_map(|line| line.split('|').nth(1)?.trim().parse().ok());
        let known = [
            Code::Clean,
            Code::Failed,
            Code::Usage,
            Code::Server,
            Code::TemplateRefused,
            Code::WorkGivenUp,
            Code::BudgetExhausted,
            Code::Remain,
            Code::TakenOver,
            Code::DriverSilent,
            Code::Signal(Signal::Int),
        ];
        assert_eq!(cells.collect::<Vec<u8>>(), known.map(Code::number));
    }
}
