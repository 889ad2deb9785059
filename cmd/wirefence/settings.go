package main

import (
	"fmt"
	"os"
	"reflect"
	"strings"

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
		if f.Type.Kind() == reflect.Bool {
			c.Flags().Bool(flagName(f), fallback == "true", help)
			continue
		}
		c.Flags().String(flagName(f), fallback, help)
	}
	c.Flags().SortFlags = false
}

// read returns the settings from flags, environment and defaults, in this
// order.
func read[T any](c *cobra.Command) (T, error) {
	values := env.ToMap(os.Environ())
	for _, f := range fields[T]() {
		if flag := c.Flags().Lookup(flagName(f)); flag.Changed {
			values[f.Tag.Get("env")] = flag.Value.String()
		}
	}
	var cfg T
	if err := env.ParseWithOptions(&cfg, env.Options{Environment: values}); err != nil {
		return cfg, usageError{err}
	}
	return cfg, nil
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
