package main

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/caarlos0/env/v10"
	"github.com/spf13/cobra"
)

// A command's settings are a struct whose fields have the tags env (the
// variable), envDefault and help. settings gives each a flag: WIREFENCE_LISTEN
// is --listen. An embedded struct adds its own; it is filled only if its type is
// exported.

const prefix = "WIREFENCE_"

// settings adds the flags of a settings struct to a command.
func settings[T any](c *cobra.Command) {
	for _, f := range fields[T]() {
		help := fmt.Sprintf("%s [%s]", f.Tag.Get("help"), f.Tag.Get("env"))
		fallback := f.Tag.Get("envDefault")
		switch f.Type.Kind() {
		case reflect.Bool:
			c.Flags().Bool(flagName(f), fallback == "true", help)
		case reflect.Slice: // which may be given several times
			c.Flags().Var(&list{text: fallback}, flagName(f), help)
		default:
			c.Flags().String(flagName(f), fallback, help)
		}
		_ = c.Flags().SetAnnotation(flagName(f), variableOf, []string{f.Tag.Get("env")})
	}
	c.Flags().SortFlags = false
}

// read returns the settings from flags, environment and defaults, in this
// order.
func read[T any](c *cobra.Command) (T, error) {
	values := env.ToMap(os.Environ())
	for _, f := range fields[T]() {
		flag := c.Flags().Lookup(flagName(f))
		if !flag.Changed {
			continue
		}
		values[f.Tag.Get("env")] = flag.Value.String()
	}
	var cfg T
	if err := env.ParseWithOptions(&cfg, env.Options{Environment: values}); err != nil {
		return cfg, usageError{settingError[T](c, values, err)}
	}
	return cfg, nil
}

// list is a flag for several values, in one text with commas or one by one.
type list struct {
	text  string
	given bool
}

func (l *list) String() string { return l.text }
func (l *list) Type() string   { return "string" }

func (l *list) Set(text string) error {
	if l.given {
		text = l.text + "," + text
	}
	l.text, l.given = text, true
	return nil
}

// settingError words what is wrong with a value, by the name under which it was
// given.
func settingError[T any](c *cobra.Command, values map[string]string, err error) error {
	var all env.AggregateError
	var wrong env.ParseError
	if !errors.As(err, &all) || len(all.Errors) == 0 || !errors.As(all.Errors[0], &wrong) {
		return err
	}
	for _, f := range fields[T]() {
		if f.Name != wrong.Name {
			continue
		}
		name, variable := f.Tag.Get("env"), f.Tag.Get("env")
		if c.Flags().Lookup(flagName(f)).Changed {
			name = "--" + flagName(f)
		}
		form := "true or false"
		kind := wrong.Type
		if kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		switch {
		case kind == reflect.TypeFor[time.Duration]():
			form = "a duration, as in 30s"
		case kind.Kind() == reflect.Int || kind.Kind() == reflect.Int64:
			form = "a whole number, as in 100"
		}
		return fmt.Errorf("%s is %q: %s", name, values[variable], form)
	}
	return err
}

func fields[T any]() []reflect.StructField {
	var all []reflect.StructField
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		if !f.Anonymous {
			all = append(all, f)
		}
	}
	return all
}

func flagName(f reflect.StructField) string {
	name := strings.TrimPrefix(f.Tag.Get("env"), prefix)
	return strings.ReplaceAll(strings.ToLower(name), "_", "-")
}
