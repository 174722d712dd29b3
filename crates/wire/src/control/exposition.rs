//! The text of a scrape: Prometheus' text format 0.0.4 and OpenMetrics 1.0, and the histograms in it. The crate prometheus-client
//! writes OpenMetrics alone.

use std::fmt::Write as _;

/// The format of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    Prometheus,
}

impl Format {
    /// The format that the client prefers, by the values of its `Accept` headers. Prometheus' own
    /// format if it prefers none.
    pub fn of_accept<'a>(accept: impl Iterator<Item = &'a str>) -> Self {
        let (mut openmetrics, mut text) = (0, 0);
        for range in accept.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default();
            let (mut weight, mut version) = (WEIGHT_MAX, None);
            for (name, value) in parts.filter_map(|parameter| parameter.split_once('=')) {
                match name.trim().to_ascii_lowercase().as_str() {
                    "q" => weight = parse_weight(value.trim()),
                    "version" => version = Some(value.trim().trim_matches('"')),
                    _ => {}
                }
            }
            let is_ours = media_type.eq_ignore_ascii_case("application/openmetrics-text");
            if is_ours && version.is_none_or(|version| version == "1.0.0") {
                openmetrics = weight.max(openmetrics);
            } else if ["text/plain", "text/*", "*/*"].contains(&media_type) {
                text = weight.max(text);
            }
        }
        if openmetrics > 0 && openmetrics >= text { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// The `Content-Type` of the text.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The weight of a media type without `q`, in thousandths.
const WEIGHT_MAX: u16 = 1_000;

/// A weight (RFC 9110: at most three decimals) in thousandths; 0 if it is invalid.
fn parse_weight(text: &str) -> u16 {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let thousandths = format!("{whole}{decimals:0<3}").parse().unwrap_or(0);
    if decimals.len() <= 3 && thousandths <= WEIGHT_MAX { thousandths } else { 0 }
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// Its name ends with `_total`.
    Counter,
    Gauge,
    Histogram,
    /// Its name ends with `_info`, its value is 1.
    Info,
}

/// How often a value lay in each range.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// The upper bounds, ascending.
    bounds: &'static [f64],
    /// The observations up to each bound and above the one before; the last one: above all bounds.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// Without observations.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Counts a value.
    pub fn observe(&mut self, value: f64) {
        let i = self.bounds.partition_point(|bound| *bound < value);
        self.counts[i] += 1;
        self.sum += value;
    }

    /// The number of observations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// A text under construction. A metric's samples follow its `metric` call.
#[derive(Debug)]
pub struct Exposition {
    format: Format,
    text: String,
    name: &'static str,
}

/// The names and values of a sample's labels.
pub type Labels<'a> = &'a [(&'static str, &'a str)];

impl Exposition {
    /// An empty text.
    pub fn new(format: Format) -> Self {
        Self { format, text: String::with_capacity(TEXT_BYTES_USUAL), name: "" }
    }

    /// Begins a metric. `help` is one line without quotes and backslashes.
    pub fn metric(&mut self, name: &'static str, metric_type: MetricType, help: &str) -> &mut Self {
        self.name = name;
        // OpenMetrics names the family, without the ending that its samples have.
        let (family, word) = match (self.format, metric_type) {
            (Format::OpenMetrics, MetricType::Counter) => {
                (name.strip_suffix("_total").unwrap_or(name), "counter")
            }
            (Format::OpenMetrics, MetricType::Info) => {
                (name.strip_suffix("_info").unwrap_or(name), "info")
            }
            (Format::Prometheus, MetricType::Counter) => (name, "counter"),
            (Format::Prometheus, MetricType::Info) | (_, MetricType::Gauge) => (name, "gauge"),
            (_, MetricType::Histogram) => (name, "histogram"),
        };
        self.push(format_args!("# HELP {family} {help}\n# TYPE {family} {word}\n"));
        self
    }

    /// A sample of the last metric.
    pub fn sample(&mut self, labels: Labels<'_>, value: f64) -> &mut Self {
        self.write("", labels, None, value);
        self
    }

    /// A sample of the last metric that counts something.
    pub fn count(&mut self, labels: Labels<'_>, n: u64) -> &mut Self {
        self.sample(labels, as_f64(n))
    }

    /// The samples of a histogram.
    pub fn histogram(&mut self, labels: Labels<'_>, histogram: &Histogram) -> &mut Self {
        let mut n = 0;
        let bounds = histogram.bounds.iter().copied().chain([f64::INFINITY]);
        for (bound, count) in bounds.zip(&histogram.counts) {
            n += count;
            self.write("_bucket", labels, Some(bound), as_f64(n));
        }
        self.write("_sum", labels, None, histogram.sum);
        self.write("_count", labels, None, as_f64(n));
        self
    }

    /// The whole text.
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    fn write(&mut self, suffix: &str, labels: Labels<'_>, bound: Option<f64>, value: f64) {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        let mut before = '{';
        for (name, value) in labels {
            self.text.push(before);
            self.push(format_args!("{name}=\""));
            self.push_escaped(value);
            self.text.push('"');
            before = ',';
        }
        if let Some(bound) = bound {
            self.text.push(before);
            // OpenMetrics wants `1.0`, not `1`.
            match bound.is_finite() {
                true => self.push(format_args!("le=\"{bound:?}\"")),
                false => self.text.push_str("le=\"+Inf\""),
            }
            before = ',';
        }
        if before == ',' {
            self.text.push('}');
        }
        self.push(format_args!(" {value}\n"));
    }

    fn push_escaped(&mut self, value: &str) {
        for c in value.chars() {
            match c {
                '\\' => self.text.push_str("\\\\"),
                '"' => self.text.push_str("\\\""),
                '\n' => self.text.push_str("\\n"),
                c => self.text.push(c),
            }
        }
    }

    fn push(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.text.write_fmt(text);
    }
}

/// Exact up to 2^53, as in every Prometheus.
#[expect(clippy::cast_precision_loss, reason = "the formats have only floats")]
fn as_f64(n: u64) -> f64 {
    n as f64
}

/// The usual size of a text, in bytes.
const TEXT_BYTES_USUAL: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// A metric of each type, with what needs an escape.
    fn text(format: Format) -> String {
        let mut text = Exposition::new(format);
        text.metric("posse_info", MetricType::Info, "The program.")
            .sample(&[("version", "0.1.0")], 1.0);
        text.metric("a_total", MetricType::Counter, "What is counted.")
            .count(&[("reason", "a\\b"), ("said", "\"no\"\nnever")], 3)
            .count(&[], 1 << 40);
        text.metric("b_seconds", MetricType::Gauge, "A time.").sample(&[], 0.25);
        let mut histogram = Histogram::new(&[0.5, 1.0, 30.0]);
        for value in [0.1, 0.5, 0.7, 31.0] {
            histogram.observe(value);
        }
        assert_eq!(histogram.count(), 4);
        text.metric("c_seconds", MetricType::Histogram, "A distribution.")
            .histogram(&[("group", "g")], &histogram);
        text.metric("d", MetricType::Gauge, "Nothing.");
        text.finish()
    }

    const SAMPLES: [&str; 10] = [
        "posse_info{version=\"0.1.0\"} 1",
        "a_total{reason=\"a\\\\b\",said=\"\\\"no\\\"\\nnever\"} 3",
        "a_total 1099511627776",
        "b_seconds 0.25",
        "c_seconds_bucket{group=\"g\",le=\"0.5\"} 2",
        "c_seconds_bucket{group=\"g\",le=\"1.0\"} 3",
        "c_seconds_bucket{group=\"g\",le=\"30.0\"} 3",
        "c_seconds_bucket{group=\"g\",le=\"+Inf\"} 4",
        "c_seconds_sum{group=\"g\"} 32.3",
        "c_seconds_count{group=\"g\"} 4",
    ];

    #[track_caller]
    fn check(format: Format, comments: &[&str]) {
        let text = text(format);
        let (ours, samples): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.starts_with('#'));
        assert_eq!(samples, SAMPLES, "{text}");
        assert_eq!(ours, comments, "{text}");
    }

    #[test]
    fn both_formats_have_the_same_samples() {
        check(
            Format::Prometheus,
            &[
                "# HELP posse_info The program.",
                "# TYPE posse_info gauge",
                "# HELP a_total What is counted.",
                "# TYPE a_total counter",
                "# HELP b_seconds A time.",
                "# TYPE b_seconds gauge",
                "# HELP c_seconds A distribution.",
                "# TYPE c_seconds histogram",
                "# HELP d Nothing.",
                "# TYPE d gauge",
            ],
        );
        check(
            Format::OpenMetrics,
            &[
                "# HELP posse The program.",
                "# TYPE posse info",
                "# HELP a What is counted.",
                "# TYPE a counter",
                "# HELP b_seconds A time.",
                "# TYPE b_seconds gauge",
                "# HELP c_seconds A distribution.",
                "# TYPE c_seconds histogram",
                "# HELP d Nothing.",
                "# TYPE d gauge",
                "# EOF",
            ],
        );
        assert!(text(Format::OpenMetrics).ends_with("\n# EOF\n"));
    }

    #[test]
    fn the_client_chooses_the_format() {
        const OPEN: &str = "application/openmetrics-text";
        // What Prometheus 2.42 and 3.0 send.
        let old = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;\
                   version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let new = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                   application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;\
                   escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, want) in [
            (vec![], Format::Prometheus),
            (vec!["*/*"], Format::Prometheus),
            (vec!["text/plain"], Format::Prometheus),
            (vec!["text/html,*/*;q=0.8"], Format::Prometheus),
            (vec![OPEN], Format::OpenMetrics),
            (vec!["text/plain;q=0.5", OPEN], Format::OpenMetrics),
            (vec!["APPLICATION/OpenMetrics-Text; Version=\"1.0.0\""], Format::OpenMetrics),
            (vec!["application/openmetrics-text; q=0.2, text/plain"], Format::Prometheus),
            (vec!["application/openmetrics-text;q=0"], Format::Prometheus),
            (vec!["application/openmetrics-text;q=x,text/plain"], Format::Prometheus),
            (vec!["application/openmetrics-text;q=2,text/plain;q=0.001"], Format::Prometheus),
            (vec!["application/openmetrics-text;q=0.50,text/plain;q=0.499"], Format::OpenMetrics),
            (vec!["application/openmetrics-text;version=2.0.0"], Format::Prometheus),
            (vec![old], Format::OpenMetrics),
            (vec![new], Format::OpenMetrics),
        ] {
            assert_eq!(Format::of_accept(accept.iter().copied()), want, "{accept:?}");
        }
    }
}
