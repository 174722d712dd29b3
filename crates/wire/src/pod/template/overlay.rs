//! Applies the shorthands of posse.yaml to a container of a template.

use serde_json::{Map, Value, json};

use crate::pod::template::{Shorthands, Template, TemplateError, describe};

impl Template {
    /// The map under `key`. An absent one is created; any other type is an error.
    pub fn map<'m>(
        &self,
        parent: &'m mut Map<String, Value>,
        key: &str,
        field: &str,
    ) -> Result<&'m mut Map<String, Value>, TemplateError> {
        let value = parent.entry(key).or_insert(Value::Null);
        if value.is_null() {
            *value = Value::Object(Map::new());
        }
        let what = describe(value);
        value
            .as_object_mut()
            .ok_or_else(|| self.fail(field, format!("expected a map, found {what}")))
    }

    /// The list under `key`. An absent one is created; any other type is an error.
    pub fn list<'m>(
        &self,
        parent: &'m mut Map<String, Value>,
        key: &str,
        field: &str,
    ) -> Result<&'m mut Vec<Value>, TemplateError> {
        let value = parent.entry(key).or_insert(Value::Null);
        if value.is_null() {
            *value = Value::Array(Vec::new());
        }
        let what = describe(value);
        value
            .as_array_mut()
            .ok_or_else(|| self.fail(field, format!("expected a list, found {what}")))
    }

    /// Applies the shorthands to the container at `field`.
    pub fn lay_over(
        &self,
        container: &mut Map<String, Value>,
        field: &str,
    ) -> Result<(), TemplateError> {
        let Shorthands { image, command, args, env, cpu, memory, resources } = &self.shorthands;
        let mut set = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                container.insert(key.to_owned(), value);
            }
        };
        set("image", image.as_ref().map(|image| json!(image)));
        set("command", command.as_ref().map(|command| json!(command)));
        set("args", args.as_ref().map(|args| json!(args)));
        if args.as_ref().is_some_and(Vec::is_empty) {
            container.remove("args");
        }
        if !env.is_empty() {
            let list = self.list(container, "env", &format!("{field}.env"))?;
            list.retain(|old| !env.iter().any(|new| new.get("name") == old.get("name")));
            list.extend(env.iter().cloned());
        }
        let amounts = resources.iter().flat_map(Value::as_object).flatten();
        for (kind, amounts) in amounts {
            let field = format!("{field}.resources");
            let resources = self.map(container, "resources", &field)?;
            let list = self.map(resources, kind, &format!("{field}.{kind}"))?;
            for (resource, amount) in amounts.as_object().into_iter().flatten() {
                list.insert(resource.clone(), amount.clone());
            }
        }
        for (resource, amount) in [("cpu", cpu), ("memory", memory)] {
            let Some(amount) = amount else { continue };
            let field = format!("{field}.resources");
            let resources = self.map(container, "resources", &field)?;
            for kind in ["requests", "limits"] {
                let amounts = self.map(resources, kind, &format!("{field}.{kind}"))?;
                amounts.insert(resource.to_owned(), json!(amount));
            }
        }
        Ok(())
    }
}
