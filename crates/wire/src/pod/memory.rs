//! Memory scaling: the amounts that a container's memory takes after one OOM kill, after two, and
//! so on.

use serde_json::Value;

use posse_core::model::pod_text::MemoryStep;
use posse_encoding::quantity::Quantity;

const MEBI: i128 = 1 << 20;
/// Limit of steps. At 25 % a step this is a factor of 1,000.
const STEPS_MAX: usize = 32;

/// How memory scales.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryScaling {
    /// Factor of one step, in thousandths. Above 1,000.
    pub permille: u32,
    /// Upper limit of the memory limit.
    pub max: String,
    /// The part of its limit, in thousandths, from which on a running executor gets more; none: never.
    pub grow_at_permille: Option<u32>,
}

impl MemoryScaling {
    /// The steps for a container. Without a request, the server sets the request to the limit.
    ///
    /// # Errors
    /// `limits` or `requests`, and what is wrong with the memory there.
    pub(super) fn steps(
        &self,
        limit: Option<&Value>,
        request: Option<&Value>,
    ) -> Result<Vec<MemoryStep>, (&'static str, String)> {
        let Some(limit) = limit.filter(|limit| !limit.is_null()) else {
            return Err((
                "limits",
                "is missing; oom_growth needs a limit to start from".to_owned(),
            ));
        };
        let first = bytes("limits", limit)?;
        let of_request = request.map(|request| bytes("requests", request)).transpose()?;
        let max = Quantity::parse(&self.max).map_or(0, Quantity::rounded_up_to_bytes);
        if max < first {
            let what = format!("{} is above memory_max, which is {}", written(limit), self.max);
            return Err(("limits", what));
        }
        let step = |limit: String, request: Option<String>, bytes: i128| MemoryStep {
            limit,
            request: request.unwrap_or_default(),
            limit_bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
        };
        let mut steps = vec![step(written(limit), request.map(written), first)];
        let mut last = first;
        while last < max && steps.len() <= STEPS_MAX {
            let grown = last.saturating_mul(i128::from(self.permille)) / 1_000;
            last = mebis(grown).saturating_mul(MEBI).min(max);
            let request = of_request.map(|request| request.saturating_mul(last) / first);
            let request = request.map(|request| format!("{}Mi", mebis(request).min(mebis(last))));
            let limit = if last == max { self.max.clone() } else { format!("{}Mi", mebis(last)) };
            steps.push(step(limit, request, last));
        }
        Ok(steps)
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

/// Mebibytes, rounded up.
fn mebis(bytes: i128) -> i128 {
    bytes.saturating_add(MEBI - 1) / MEBI
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(permille: u32, max: &str, amounts: [Value; 2], want: &[(&str, &str)]) {
        let memory_scaling =
            MemoryScaling { permille, max: max.to_owned(), grow_at_permille: None };
        let [limit, request] = amounts;
        let request = Some(&request).filter(|request| !request.is_null());
        let steps = memory_scaling.steps(Some(&limit), request).unwrap();
        let amounts = steps.iter().map(|step| (step.limit.as_str(), step.request.as_str()));
        assert_eq!(amounts.collect::<Vec<_>>(), want, "{limit}");
    }

    #[test]
    fn limit_and_request_scale_up_to_the_maximum() {
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
    fn memory_that_cannot_scale_is_an_error() {
        let memory_scaling =
            MemoryScaling { permille: 1_250, max: "1Gi".to_owned(), grow_at_permille: None };
        for (limit, request, want) in [
            (
                json!(null),
                json!(null),
                "limits: is missing; oom_growth needs a limit to start from",
            ),
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
            let (part, what) = memory_scaling.steps(Some(&limit), request).unwrap_err();
            assert_eq!(format!("{part}: {what}"), want);
        }
    }
}
