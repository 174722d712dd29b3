//! Owns the amounts that a container's memory grows to, step by step. When it grows is `core/`'s.

use serde_json::Value;

use crate::wire::quantity::Quantity;

const MEBI: i128 = 1 << 20;
/// More steps than that are not needed: 25 % more each time, that is a thousand times as much.
const STEPS_MAX: usize = 32;

/// How memory grows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Each step is so many thousandths of the one before; above 1,000.
    pub permille: u32,
    /// No limit is above this amount.
    pub max: String,
}

/// Limit and request, as they are written: first the template's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    pub(super) amounts: Vec<(String, String)>,
}

impl Steps {
    /// The steps from what a container has; without a request the server makes it the limit.
    ///
    /// # Errors
    /// `limits` or `requests`, and what is wrong with the memory there.
    pub fn new(
        growth: &Growth,
        limit: Option<&Value>,
        request: Option<&Value>,
    ) -> Result<Self, (&'static str, String)> {
        let Some(limit) = limit.filter(|limit| !limit.is_null()) else {
            return Err(("limits", "is missing; oom_growth makes it larger".to_owned()));
        };
        let first = bytes("limits", limit)?;
        let of_request = request.map(|request| bytes("requests", request)).transpose()?;
        let max = Quantity::parse(&growth.max).map_or(0, Quantity::rounded_up_to_bytes);
        if max < first {
            let what = format!("{} is above memory_max, which is {}", written(limit), growth.max);
            return Err(("limits", what));
        }
        let mut amounts = vec![(written(limit), request.map(written).unwrap_or_default())];
        let mut last = first;
        while last < max && amounts.len() <= STEPS_MAX {
            let grown = last.saturating_mul(i128::from(growth.permille)) / 1_000;
            last = mebis(grown).saturating_mul(MEBI).min(max);
            let request = of_request.map(|request| request.saturating_mul(last) / first);
            let request = request.map(|request| format!("{}Mi", mebis(request).min(mebis(last))));
            let limit = if last == max { growth.max.clone() } else { format!("{}Mi", mebis(last)) };
            amounts.push((limit, request.unwrap_or_default()));
        }
        Ok(Self { amounts })
    }
}

fn written(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn bytes(part: &'static str, value: &Value) -> Result<i128, (&'static str, String)> {
    let bytes = Quantity::of(value).map(Quantity::rounded_up_to_bytes).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| {
        (part, format!("expected an amount of memory like 512Mi, found `{}`", written(value)))
    })
}

/// Rounded up.
fn mebis(bytes: i128) -> i128 {
    bytes.saturating_add(MEBI - 1) / MEBI
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(permille: u32, max: &str, amounts: [Value; 2], want: &[(&str, &str)]) {
        let growth = Growth { permille, max: max.to_owned() };
        let [limit, request] = amounts;
        let request = Some(&request).filter(|request| !request.is_null());
        let steps = Steps::new(&growth, Some(&limit), request).unwrap();
        let amounts =
            steps.amounts.iter().map(|(limit, request)| (limit.as_str(), request.as_str()));
        assert_eq!(amounts.collect::<Vec<_>>(), want, "{limit}");
    }

    #[test]
    fn memory_grows_to_its_end_and_the_request_with_it() {
        check(
            1_250,
            "2Gi",
            [json!("1Gi"), json!("512Mi")],
            &[
                ("1Gi", "512Mi"),
                ("1280Mi", "640Mi"),
                ("1600Mi", "800Mi"),
                ("2000Mi", "1000Mi"),
                ("2Gi", "1024Mi"),
            ],
        );
        check(
            2_000,
            "100M",
            [json!(33_000_000), json!(null)],
            &[("33000000", ""), ("63Mi", ""), ("100M", "")],
        );
        check(1_500, "1Gi", [json!("1Gi"), json!("1Gi")], &[("1Gi", "1Gi")]);
    }

    #[test]
    fn what_cannot_grow_says_so() {
        let growth = Growth { permille: 1_250, max: "1Gi".to_owned() };
        for (limit, request, want) in [
            (json!(null), json!(null), "limits: is missing; oom_growth makes it larger"),
            (json!("2Gi"), json!(null), "limits: 2Gi is above memory_max, which is 1Gi"),
            (
                json!("lots"),
                json!(null),
                "limits: expected an amount of memory like 512Mi, found `lots`",
            ),
            (
                json!("1Mi"),
                json!("-1"),
                "requests: expected an amount of memory like 512Mi, found `-1`",
            ),
        ] {
            let request = Some(&request).filter(|request| !request.is_null());
            let (part, what) = Steps::new(&growth, Some(&limit), request).unwrap_err();
            assert_eq!(format!("{part}: {what}"), want);
        }
    }
}
