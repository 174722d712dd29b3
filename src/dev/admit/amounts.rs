//! Owns lists of resource amounts as specs and quotas have them, and their arithmetic. Knows no
//! resource.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::wire::quantity::Quantity;

/// Amounts by the name of their resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amounts(pub(crate) BTreeMap<String, Quantity>);

impl Amounts {
    /// Reads the list at a JSON pointer; what is no amount is left out.
    pub(crate) fn read(value: &Value, pointer: &str) -> Self {
        let members = value.pointer(pointer).and_then(Value::as_object);
        let amount = |(name, amount): (&String, &Value)| {
            let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
            Quantity::parse(&text).map(|amount| (name.clone(), amount))
        };
        let mut amounts = BTreeMap::new();
        amounts.extend(members.into_iter().flatten().filter_map(amount));
        Self(amounts)
    }

    pub(crate) fn get(&self, name: &str) -> Option<Quantity> {
        self.0.get(name).copied()
    }

    pub(crate) fn set(&mut self, name: &str, amount: Quantity) {
        self.0.insert(name.to_owned(), amount);
    }

    /// Adds each amount to the one of its name.
    pub(crate) fn add(&mut self, others: &Self) {
        for (name, amount) in &others.0 {
            let sum = self.get(name).map_or(*amount, |present| present.plus(*amount));
            self.set(name, sum);
        }
    }

    /// Takes the larger of each two amounts.
    pub(crate) fn raise_to(&mut self, others: &Self) {
        for (name, amount) in &others.0 {
            if self.get(name).is_none_or(|present| amount.exceeds(present)) {
                self.set(name, *amount);
            }
        }
    }

    /// Those whose names pass.
    pub(crate) fn only(&self, pass: impl Fn(&str) -> bool) -> Self {
        let passing = self.0.iter().filter(|(name, _)| pass(name));
        let mut amounts = BTreeMap::new();
        amounts.extend(passing.map(|(name, amount)| (name.clone(), *amount)));
        Self(amounts)
    }

    /// As messages tell them: `cpu=1,pods=3`.
    pub(crate) fn text(&self) -> String {
        let texts = self.0.iter().map(|(name, amount)| format!("{name}={}", amount.canonical()));
        texts.collect::<Vec<_>>().join(",")
    }

    pub(crate) fn json(&self) -> Value {
        let members = self.0.iter().map(|(name, amount)| (name.clone(), amount.canonical().into()));
        Value::Object(members.collect())
    }
}
