//! The text of a scrape in Prometheus' text format 0.0.4, and the histograms in it.

use std::fmt::Write as _;

/// The `Content-Type` of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// Its name ends with `_total`.
    Counter,
    Gauge,
    Histogram,
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
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
    name: &'static str,
}

/// The names and values of a sample's labels.
pub type Labels<'a> = &'a [(&'static str, &'a str)];

impl Exposition {
    /// Begins a metric. `help` is one line without quotes and backslashes.
    pub fn metric(&mut self, name: &'static str, metric_type: MetricType, help: &str) -> &mut Self {
        self.name = name;
        let word = match metric_type {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
        };
        self.push(format_args!("# HELP {name} {help}\n# TYPE {name} {word}\n"));
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
    pub fn finish(self) -> String {
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
            // `1.0` and not `1`, as Prometheus itself keeps it.
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
#[expect(clippy::cast_precision_loss, reason = "the format has only floats")]
fn as_f64(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A metric of each type, with what needs an escape.
    #[test]
    fn writes_each_type_of_metric() {
        let mut text = Exposition::default();
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
        let want = [
            "# HELP a_total What is counted.",
            "# TYPE a_total counter",
            "a_total{reason=\"a\\\\b\",said=\"\\\"no\\\"\\nnever\"} 3",
            "a_total 1099511627776",
            "# HELP b_seconds A time.",
            "# TYPE b_seconds gauge",
            "b_seconds 0.25",
            "# HELP c_seconds A distribution.",
            "# TYPE c_seconds histogram",
            "c_seconds_bucket{group=\"g\",le=\"0.5\"} 2",
            "c_seconds_bucket{group=\"g\",le=\"1.0\"} 3",
            "c_seconds_bucket{group=\"g\",le=\"30.0\"} 3",
            "c_seconds_bucket{group=\"g\",le=\"+Inf\"} 4",
            "c_seconds_sum{group=\"g\"} 32.3",
            "c_seconds_count{group=\"g\"} 4",
            "# HELP d Nothing.",
            "# TYPE d gauge",
        ];
        assert_eq!(text.finish().lines().collect::<Vec<_>>(), want);
    }
}
