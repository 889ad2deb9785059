package manual

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Field is one field of what a command prints as JSON. Its path begins with [] where the
// whole is a list, and names lists within in the same way: "checks[].grade".
type Field struct {
	Path, Type, Meaning string
	Absent              bool // it is left out where there is nothing to tell
}

// Fields are those of an output, in order.
func (r *Reference) Fields(o Output) ([]Field, error) {
	w := walk{meanings: r.Meanings}
	err := w.value(reflect.TypeOf(o.Value), "")
	return w.fields, err
}

type walk struct {
	meanings map[string]string
	fields   []Field
}

func (w *walk) value(t reflect.Type, path string) error {
	t = target(t)
	switch {
	case leaf(t):
		return nil
	case t.Kind() == reflect.Slice || t.Kind() == reflect.Array:
		return w.value(t.Elem(), path+"[]")
	case t.Kind() == reflect.Map:
		return w.value(t.Elem(), path+".*")
	case t.Kind() == reflect.Struct:
		return w.object(t, path)
	}
	return nil
}

func (w *walk) object(t reflect.Type, path string) error {
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		switch {
		case tag == "-" || !f.IsExported() && !f.Anonymous:
			continue
		case f.Anonymous && name == "":
			if err := w.object(target(f.Type), path); err != nil {
				return err
			}
			continue
		}
		meaning := f.Tag.Get("says")
		if meaning == "" {
			meaning = w.meanings[t.String()+"."+name]
		}
		if meaning == "" {
			return fmt.Errorf("nothing is said of %s.%s", t, name)
		}
		at, kind, absent := strings.TrimPrefix(path+"."+name, "."), typeOf(f.Type), strings.Contains(options, "omit")
		if absent {
			kind = strings.TrimSuffix(kind, orNull)
		}
		w.fields = append(w.fields, Field{Path: at, Type: kind, Meaning: meaning, Absent: absent})
		if err := w.value(f.Type, at); err != nil {
			return err
		}
	}
	return nil
}

var textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()

// leaf reports whether a type has no fields of its own in JSON.
func leaf(t reflect.Type) bool {
	return t == reflect.TypeFor[time.Time]() || t == reflect.TypeFor[json.RawMessage]() || t.Implements(textMarshaler)
}

func target(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

const orNull = " or null"

// typeOf names a type in the terms of JSON.
func typeOf(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		return typeOf(t.Elem()) + orNull
	}
	switch {
	case t == reflect.TypeFor[time.Time]():
		return "time"
	case t == reflect.TypeFor[json.RawMessage]():
		return "any"
	case t.Implements(textMarshaler):
		return "string"
	}
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Float32, reflect.Float64:
		return "number"
	case reflect.Struct, reflect.Map:
		return "object"
	case reflect.Slice, reflect.Array:
		return "list of " + strings.TrimSuffix(typeOf(t.Elem()), orNull) + "s"
	}
	return "integer"
}
