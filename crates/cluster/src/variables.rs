//! The users' variable files, changed in place: comments, order and everything that is not meant stay as they are.

use hcl_edit::expr::{Expression, Object, ObjectKey, ObjectValue, ObjectValueTerminator};
use hcl_edit::structure::{Attribute, Body};
use hcl_edit::{Decorate, Ident};

/// A variable file.
#[derive(Debug)]
pub(crate) struct Variables(Body);

impl Variables {
    /// Reads the text of a file; the error says where it makes no sense.
    pub(crate) fn read(text: &str) -> Result<Variables, String> {
        text.parse::<Body>().map(Variables).map_err(|error| error.to_string())
    }

    /// The file's text.
    pub(crate) fn text(&self) -> String {
        self.0.to_string()
    }

    /// Sets `name`, or `object.name`, to a value; what is not there yet is added.
    pub(crate) fn set(&mut self, path: &str, value: impl Into<Expression>) {
        let value = value.into();
        let (name, below) = match path.split_once('.') {
            Some((object, name)) => (object, Some(name)),
            None => (path, None),
        };
        if self.0.get_attribute(name).is_none() {
            self.0.push(Attribute::new(Ident::new_sanitized(name), Object::new()));
        }
        let Some(mut attribute) = self.0.get_attribute_mut(name) else { return };
        match (below, inner_mut(attribute.value_mut())) {
            (Some(key), Expression::Object(object)) => set_in(object, key, value),
            // What is no object, such as `null`, becomes one.
            (Some(key), place) => {
                let mut object = Object::new();
                set_in(&mut object, key, value);
                replace(place, object.into());
            }
            (None, place) => replace(place, value),
        }
    }

    /// Makes `name` an object of these texts alone.
    pub(crate) fn set_object(&mut self, name: &str, values: &[(&str, &str)]) {
        let mut object = Object::new();
        for (key, value) in values {
            set_in(&mut object, key, (*value).into());
        }
        self.set(name, object);
    }

    /// Whether `name` is set to false.
    pub(crate) fn is_off(&self, name: &str) -> bool {
        self.0.get_attribute(name).is_some_and(|attribute| attribute.value.as_bool() == Some(false))
    }

    /// The whole number at `object.name`.
    pub(crate) fn number(&self, object: &str, name: &str) -> Option<u64> {
        self.get(object, name)?.as_number()?.as_u64()
    }

    /// The text at `name`.
    pub(crate) fn string(&self, name: &str) -> Option<&str> {
        self.0.get_attribute(name)?.value.as_str()
    }

    fn get(&self, object: &str, name: &str) -> Option<&Expression> {
        let found = inner(&self.0.get_attribute(object)?.value).as_object()?;
        Some(found.get(&ObjectKey::from(Ident::new_sanitized(name)))?.expr())
    }
}

/// The users write `auth_data = ({ … })`.
fn inner(expression: &Expression) -> &Expression {
    match expression {
        Expression::Parenthesis(parenthesis) => inner(parenthesis.inner()),
        other => other,
    }
}

fn inner_mut(expression: &mut Expression) -> &mut Expression {
    match expression {
        Expression::Parenthesis(parenthesis) => inner_mut(parenthesis.inner_mut()),
        other => other,
    }
}

/// Puts another value in the place of one, with the spaces and comments around it.
fn replace(place: &mut Expression, value: Expression) {
    let around = place.decor().clone();
    *place = value;
    *place.decor_mut() = around;
}

fn set_in(object: &mut Object, name: &str, value: Expression) {
    let mut key = ObjectKey::from(Ident::new_sanitized(name));
    if let Some(found) = object.get_mut(&key) {
        return replace(found.expr_mut(), value);
    }
    let mut entry = ObjectValue::new(value);
    let last = object.iter_mut().last().map(|(_, last)| last);
    match last {
        // All on one line.
        Some(last) if last.terminator() == ObjectValueTerminator::None => {
            last.expr_mut().decor_mut().set_suffix("");
            last.set_terminator(ObjectValueTerminator::Comma);
            key.decor_mut().set_prefix(" ");
            key.decor_mut().set_suffix(" ");
            entry.expr_mut().decor_mut().set_suffix(" ");
            entry.set_terminator(ObjectValueTerminator::None);
        }
        last => {
            let is_first = last.is_none();
            key.decor_mut().set_prefix(if is_first { "\n  " } else { "  " });
            key.decor_mut().set_suffix(" ");
            entry.set_terminator(ObjectValueTerminator::Newline);
        }
    }
    object.insert(key, entry);
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"# What the machines are.
cluster_name = "ronde" # its name

openstack_provider = ({
  auth_url = "https://example:5000/v3" // where
})

horovod_worker_node = {
  # how many
  count       = 2 # two
  flavor_name = "m1.small"
}
small = { a = 1 }
"#;

    #[test]
    fn a_value_changes_and_all_else_stays() {
        let mut variables = Variables::read(FILE).expect("it reads");
        assert_eq!(variables.number("horovod_worker_node", "count"), Some(2));
        assert_eq!(variables.string("cluster_name"), Some("ronde"));
        variables.set("horovod_worker_node.count", 3_u64);
        variables.set("openstack_provider.auth_url", "https://other");
        variables.set("cluster_name", "mine");
        let expected = FILE
            .replace("count       = 2 #", "count       = 3 #")
            .replace("https://example:5000/v3", "https://other")
            .replace("\"ronde\"", "\"mine\"");
        assert_eq!(variables.text(), expected);
    }

    #[test]
    fn what_is_not_there_is_added() {
        let mut variables = Variables::read(FILE).expect("it reads");
        variables.set("horovod_worker_node.image_name", "debian-12");
        variables.set("openstack_provider.region", "r1");
        variables.set("network.cidr", "10.0.0.0/24");
        variables.set("small.b", 2_u64);
        variables.set("image", "");
        let text = variables.text();
        assert!(text.contains("  flavor_name = \"m1.small\"\n  image_name = \"debian-12\"\n}"), "{text}");
        assert!(text.contains("// where\n  region = \"r1\"\n})"), "{text}");
        assert!(text.contains("network = {\n  cidr = \"10.0.0.0/24\"\n}\n"), "{text}");
        assert!(text.contains("small = { a = 1, b = 2 }"), "{text}");
        assert!(text.ends_with("image = \"\"\n"), "{text}");
        Variables::read(&text).expect("it still reads");
    }

    #[test]
    fn texts_are_written_so_that_terraform_reads_the_same() {
        let mut variables = Variables::read("").expect("it reads");
        variables.set("auth_data.password", r#"a"b\c${d}%{e}"#);
        assert!(variables.text().contains(r#""a\"b\\c$${d}%%{e}""#), "{}", variables.text());
    }

    #[test]
    fn a_file_that_makes_no_sense_says_where() {
        let error = Variables::read("a = {\n").expect_err("unfinished");
        assert!(error.contains('2') || error.contains('1'), "{error}");
    }
}
