//! Resource quantities: syntax, canonical form, arithmetic, order.

use serde_json::Value;

/// The API server's error text for a malformed quantity.
pub const SYNTAX: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// An amount in billionths, and the notation it was written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    nanos: i128,
    form: Form,
}

/// Notation of the suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    Binary,
    Decimal,
    Exponent,
}

const NANOS: i128 = 1_000_000_000;
/// Limit of digits: no resource comes near it.
const DIGITS_MAX: usize = 20;

impl Quantity {
    /// None if the text is not a quantity.
    pub fn parse(text: &str) -> Option<Self> {
        let split =
            text.find(|c: char| !c.is_ascii_digit() && !"+-.".contains(c)).unwrap_or(text.len());
        let (number, suffix) = text.split_at(split);
        let (scale, form) = scale_of(suffix)?;
        let negative = number.starts_with('-');
        let digits = number.strip_prefix(['+', '-']).unwrap_or(number);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let all_digits = |part: &str| part.bytes().all(|c| c.is_ascii_digit());
        if whole.len() + fraction.len() == 0
            || whole.len() + fraction.len() > DIGITS_MAX
            || !all_digits(whole)
            || !all_digits(fraction)
        {
            return None;
        }
        let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
        let divisor = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
        // Digits beyond a billionth are rounded up, as the API server does.
        let scaled = digits.checked_mul(scale)?;
        let nanos = (scaled + divisor - 1) / divisor;
        Some(Self { nanos: if negative { -nanos } else { nanos }, form })
    }

    /// Reads a JSON value: a text or a number.
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Self::parse(text),
            Value::Number(number) => Self::parse(&number.to_string()),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        }
    }

    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// True if this is more than `other`.
    pub fn exceeds(self, other: Self) -> bool {
        self.nanos > other.nanos
    }

    /// Rounded up to a thousandth: specs keep no finer amounts.
    pub fn rounded_up(self) -> Self {
        const MILLI: i128 = 1_000_000;
        let excess = self.nanos.rem_euclid(MILLI);
        let nanos = if excess == 0 { self.nanos } else { self.nanos - excess + MILLI };
        Self { nanos, ..self }
    }

    /// How many times `unit` fits, rounded up. `unit` must not be zero.
    pub fn divided(self, unit: Self) -> i128 {
        let (whole, rest) = (self.nanos / unit.nanos, self.nanos % unit.nanos);
        if rest == 0 { whole } else { whole + 1 }
    }

    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// A plain number.
    pub fn whole(number: i64) -> Self {
        Self { nanos: i128::from(number) * NANOS, form: Form::Decimal }
    }

    /// The sum, in the notation of the first summand that is not zero.
    pub fn plus(self, other: Self) -> Self {
        let form = if self.nanos == 0 { other.form } else { self.form };
        Self { nanos: self.nanos.saturating_add(other.nanos), form }
    }

    /// The difference, in the notation of `self`.
    pub fn minus(self, other: Self) -> Self {
        Self { nanos: self.nanos.saturating_sub(other.nanos), ..self }
    }

    pub fn times(self, n: u32) -> Self {
        Self { nanos: self.nanos.saturating_mul(i128::from(n)), ..self }
    }

    /// Rounded up to a whole number.
    pub fn rounded_to_whole(self) -> Self {
        Self { nanos: self.rounded_up_to_bytes() * NANOS, ..self }
    }

    /// Rounded up to a whole number, as a number.
    pub fn rounded_up_to_bytes(self) -> i128 {
        self.nanos.saturating_add(NANOS - 1).div_euclid(NANOS)
    }

    /// The canonical text.
    pub fn canonical(self) -> String {
        const KIBI: i128 = 1024;
        if self.nanos == 0 {
            return "0".to_owned();
        }
        if self.form == Form::Binary && self.nanos % NANOS == 0 && self.nanos.abs() >= KIBI * NANOS
        {
            let (amount, step) = reduced(self.nanos / NANOS, KIBI);
            return format!("{amount}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][step.min(6)]);
        }
        let (amount, step) = reduced(self.nanos, 1000);
        if self.form == Form::Exponent && step != 3 {
            let power = i32::try_from(step).unwrap_or_default() * 3 - 9;
            return format!("{amount}e{power}");
        }
        format!("{amount}{}", ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][step.min(9)])
    }
}

/// Divides by `base` while nothing is lost, at most as often as there are suffixes.
fn reduced(mut amount: i128, base: i128) -> (i128, usize) {
    let steps_max = if base == 1000 { 9 } else { 6 };
    let mut step = 0;
    while step < steps_max && amount % base == 0 {
        amount /= base;
        step += 1;
    }
    (amount, step)
}

/// The value of a suffix in billionths, and its notation.
fn scale_of(suffix: &str) -> Option<(i128, Form)> {
    let decimal = |power: u32| Some((10_i128.pow(power), Form::Decimal));
    let binary = |power: u32| Some((NANOS << (10 * power), Form::Binary));
    match suffix {
        "n" => decimal(0),
        "u" => decimal(3),
        "m" => decimal(6),
        "" => decimal(9),
        "k" => decimal(12),
        "M" => decimal(15),
        "G" => decimal(18),
        "T" => decimal(21),
        "P" => decimal(24),
        "E" => decimal(27),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        other => {
            let power: i32 = other.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = u32::try_from(power.checked_add(9)?).ok().filter(|power| *power <= 27)?;
            Some((10_i128.pow(power), Form::Exponent))
        }
    }
}

/// What is wrong with an amount of memory in the configuration; `None` if nothing is.
pub fn memory_error(text: &str) -> Option<String> {
    const UNITS: [&str; 12] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "k", "M", "G", "T", "P", "E"];
    let number = UNITS.iter().find_map(|unit| text.strip_suffix(unit)).unwrap_or(text);
    (!is_decimal(number)).then(|| {
        // Kubernetes reads `512m` as half a byte.
        let hint = match text.strip_suffix(['m', 'g']) {
            Some(number) if is_decimal(number) => {
                let unit = if text.ends_with('m') { "Mi" } else { "Gi" };
                format!("; did you mean {number}{unit}")
            }
            Some(_) | None => String::new(),
        };
        format!("expected an amount of memory like 512Mi or 2Gi, found `{text}`{hint}")
    })
}

/// True for digits with at most one decimal point.
pub fn is_decimal(text: &str) -> bool {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    [whole, fraction]
        .iter()
        .all(|part| !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_and_written_canonically() {
        for (text, want) in [
            ("1", Some("1")),
            ("0.5", Some("500m")),
            ("100m", Some("100m")),
            ("1000m", Some("1")),
            ("1.0005", Some("1000500u")),
            ("1Gi", Some("1Gi")),
            ("1024Mi", Some("1Gi")),
            ("1.5Gi", Some("1536Mi")),
            ("1000000000", Some("1G")),
            ("1e3", Some("1e3")),
            ("1500e-3", Some("1500e-3")),
            ("2k", Some("2k")),
            ("-1", Some("-1")),
            ("0", Some("0")),
            ("abc", None),
            ("", None),
            ("1.2.3", None),
            ("1Zi", None),
            ("--1", None),
            ("999999999999999999999999", None),
        ] {
            let got = Quantity::parse(text).map(Quantity::canonical);
            assert_eq!(got.as_deref(), want, "{text}");
        }
        let parsed = |text| Quantity::parse(text).expect("a quantity");
        assert!(parsed("2").exceeds(parsed("1999m")) && !parsed("1Ki").exceeds(parsed("1024")));
    }
}
