package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v10"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/internal/manual"
)

// A command's settings are a struct whose fields have these tags:
//
//	env         the variable. WIREFENCE_LISTEN has the flag --listen, too. A name that
//	            begins with two dashes is a flag alone: the argument of one invocation,
//	            which an environment must not set for all.
//	envDefault  the default
//	help        the meaning, in Markdown, with ~tildes~ around code, since a tag
//	            cannot hold backquotes. Links are relative to docs/reference/settings.md, which has the text of
//	            each setting's first command
//	type        the kind of value, for the help; by default that of the field's type
//	oneof       the values that are allowed, as in "text|json"; the type, too
//	range       the numbers or durations that are allowed, as in "1..", "0..10s" or "0|1s..";
//	            the meaning ends with them
//	group       the heading in the help
//	short       the flag's one letter
//	flag        the flag's name, where it isn't the variable's
//	file        "yes": it may hold a password, and may be read from a file (secret_files.go);
//	            "anew": it is of a role of Wirefence's own, whose password may change; "reread": the
//	            same of a lease store, but for WIREFENCE_PASSWORD_COMMAND
//
// A struct within adds its own. An embedded one is filled only if its type is exported.

const prefix = "WIREFENCE_"

// settings adds the flags of a settings struct to a command.
func settings[T any](c *cobra.Command) {
	c.Flags().SortFlags = false
	for _, f := range fields[T]() {
		name, fallback, text := flagName(f), f.Tag.Get("envDefault"), meaning(f)
		if f.Type.Kind() == reflect.Bool {
			c.Flags().BoolP(name, f.Tag.Get("short"), fallback == "true", text)
		} else {
			c.Flags().VarP(&flagValue{text: fallback, kind: typeName(f), many: f.Type.Kind() == reflect.Slice}, name, f.Tag.Get("short"), text)
		}
		flag := c.Flags().Lookup(name)
		manual.Describe(flag, f.Tag.Get("group"), variable(f))
		if mayBeFile(f) {
			addFileFlag(c, f)
		}
	}
}

// meaning is what the help and the docs say of a setting.
func meaning(f reflect.StructField) string {
	text, words := f.Tag.Get("help"), allowed(f)
	if f.Tag.Get("range") != "" && f.Tag.Get("range") != "0.." {
		text += ". " + strings.ToUpper(words[:1]) + words[1:]
	}
	return text
}

// withSettings gives a command its settings, with which it runs.
func withSettings[T any](c *cobra.Command, run func(c *cobra.Command, cfg T, args []string) error) *cobra.Command {
	settings[T](c)
	c.RunE = func(c *cobra.Command, args []string) error {
		cfg, err := read[T](c)
		if err != nil {
			return err
		}
		return run(c, cfg, args)
	}
	return c
}

// read returns the settings from flags, environment and defaults, in this order. The error
// joins all that could not be read.
func read[T any](c *cobra.Command) (T, error) {
	cfg, faults := readAll[T](c)
	if err := allFaults(faults); err != nil {
		return cfg, usageError{err}
	}
	return cfg, nil
}

// readAll is read with the faults apart. A setting that has one has its default.
func readAll[T any](c *cobra.Command) (cfg T, faults []fault) {
	values := env.ToMap(os.Environ())
	for name := range values {
		if strings.HasPrefix(name, flagOnly) {
			delete(values, name)
		}
	}
	files, err := map[string]string{}, error(nil)
	for _, f := range fields[T]() {
		name := f.Tag.Get("env")
		if mayBeFile(f) {
			if files[name], err = readFile(c, f, values); err != nil {
				faults = append(faults, fault{name, err})
				delete(values, name)
				continue
			}
		}
		if flag := c.Flags().Lookup(flagName(f)); flag.Changed {
			values[name] = flag.Value.String()
		}
	}
	for _, f := range fields[T]() {
		name := f.Tag.Get("env")
		if value := values[name]; value != "" && wanted(f, value) != "" {
			faults = append(faults, fault{name, fmt.Errorf("%s is %q: %s", givenAs(c, f), value, wanted(f, value))})
			delete(values, name)
		}
	}
	if err := env.ParseWithOptions(&cfg, env.Options{Environment: values}); err != nil {
		faults = append(faults, fault{"", err})
	}
	for _, f := range fields[T]() {
		command := ""
		switch f.Tag.Get("file") {
		case "anew":
			command = values["WIREFENCE_PASSWORD_COMMAND"]
			fallthrough
		case "reread":
			renew(reflect.ValueOf(&cfg).Elem().FieldByIndex(f.Index), files[f.Tag.Get("env")], command)
		}
	}
	return cfg, faults
}

// wanted is what a setting may be instead of a value, in words; "" if it may have that.
func wanted(f reflect.StructField, value string) string {
	if _, err := quantity(f, value); err != nil {
		return map[string]string{
			"duration": "a duration, as in 30s", "int": "a whole number, as in 100", "true|false": "true or false",
		}[plainType(f)]
	}
	if !allows(f, value) {
		return allowed(f)
	}
	return ""
}

// allows reports whether a setting may have a value, as far as that can be parsed.
func allows(f reflect.StructField, value string) bool {
	if of := f.Tag.Get("oneof"); of != "" {
		return slices.Contains(strings.Split(of, "|"), value)
	}
	n, err := quantity(f, value)
	ranges := f.Tag.Get("range")
	return err != nil || ranges == "" || slices.ContainsFunc(strings.Split(ranges, "|"), func(part string) bool {
		least, most, open := strings.Cut(part, "..")
		from, _ := quantity(f, least)
		to, unbounded := quantity(f, most)
		return n == from || open && n > from && (unbounded != nil || n <= to)
	})
}

// quantity parses a value of a setting that is a number or a duration. A text has none, and
// true and false have only an error if they are neither.
func quantity(f reflect.StructField, text string) (n int64, err error) {
	switch plainType(f) {
	case "duration":
		var d time.Duration
		d, err = time.ParseDuration(text)
		n = int64(d)
	case "int":
		bits := 32
		if f.Type == reflect.TypeFor[*int64]() {
			bits = 64
		}
		n, err = strconv.ParseInt(text, 10, bits)
	case "true|false":
		_, err = strconv.ParseBool(text)
	}
	return n, err
}

// allowed is what a setting may be, in words; "" for anything of its type.
func allowed(f reflect.StructField) string {
	if of := f.Tag.Get("oneof"); of != "" {
		return manual.Alternatives(of)
	}
	var words []string
	for part := range strings.SplitSeq(f.Tag.Get("range"), "|") {
		least, most, _ := strings.Cut(part, "..")
		switch {
		case most != "":
			part = least + " to " + most
		case least != part:
			part = "at least " + least
		}
		words = append(words, part)
	}
	return strings.Join(words, ", or ")
}

// flagValue is the flag of a setting, whose text is read with those of the environment.
type flagValue struct {
	text, kind  string
	many, given bool // many: a list, given in one text with commas or by several flags
}

func (v *flagValue) String() string { return v.text }
func (v *flagValue) Type() string   { return v.kind }

func (v *flagValue) Set(text string) error {
	if v.many && v.given {
		text = v.text + "," + text
	}
	v.text, v.given = text, true
	return nil
}

// givenAs is the name under which a value was given: the flag's, or the variable's.
func givenAs(c *cobra.Command, f reflect.StructField) string {
	if name := f.Tag.Get("env"); !c.Flags().Lookup(flagName(f)).Changed && variable(f) != "" {
		return name
	}
	return flagOnly + flagName(f)
}

// fields are a struct's settings, those of structs within included.
func fields[T any]() []reflect.StructField { return settingsIn(reflect.TypeFor[T](), nil) }

func settingsIn(t reflect.Type, within []int) (all []reflect.StructField) {
	for i := range t.NumField() {
		f := t.Field(i)
		f.Index = append(slices.Clone(within), i)
		switch {
		case f.Tag.Get("env") != "":
			all = append(all, f)
		case f.Type.Kind() == reflect.Struct:
			all = append(all, settingsIn(f.Type, f.Index)...)
		}
	}
	return all
}

// flagOnly begins the name of a setting without a variable.
const flagOnly = "--"

// variable is the setting's variable, "" for one that is a flag alone.
func variable(f reflect.StructField) string {
	if name := f.Tag.Get("env"); !strings.HasPrefix(name, flagOnly) {
		return name
	}
	return ""
}

func flagName(f reflect.StructField) string {
	if variable(f) == "" {
		return strings.TrimPrefix(f.Tag.Get("env"), flagOnly)
	}
	return cmp.Or(f.Tag.Get("flag"), flagOf(variable(f)))
}

// flagOf is the name of a variable's flag.
func flagOf(variable string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(variable, prefix)), "_", "-")
}

// typeName is the kind of value that the help shows.
func typeName(f reflect.StructField) string {
	for _, tag := range []string{"type", "oneof"} {
		if name := f.Tag.Get(tag); name != "" {
			return name
		}
	}
	return plainType(f)
}

// plainType is the kind of value without the tags type and oneof.
func plainType(f reflect.StructField) string {
	of := f.Type
	if of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	switch {
	case of == reflect.TypeFor[time.Duration]():
		return "duration"
	case of.Kind() == reflect.Int, of.Kind() == reflect.Int64:
		return "int"
	case of.Kind() == reflect.Bool:
		return "true|false"
	case strings.HasSuffix(f.Tag.Get("env"), "_URL"):
		return "url"
	case strings.HasSuffix(f.Tag.Get("env"), "_FILE"):
		return "file"
	}
	return "text"
}

// fault is a setting that could not be read.
type fault struct {
	name string // the variable's
	err  error
}

// single are the errors that errors.Join has joined, or the one that is none of these.
func single(err error) (all []error) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	for _, each := range joined.Unwrap() {
		all = append(all, single(each)...)
	}
	return all
}

// allFaults joins the faults of settings and the errors that were found besides, each text
// once. An error that names a setting which could not be read is left out: it would be of
// the default that took the setting's place.
func allFaults(unread []fault, others ...error) error {
	var errs []error
	seen := map[string]bool{}
	add := func(err error) {
		if !seen[err.Error()] {
			errs = append(errs, err)
		}
		seen[err.Error()] = true
	}
	for _, f := range unread {
		for _, err := range single(f.err) {
			add(err)
		}
	}
	for _, other := range others {
		if other == nil {
			continue
		}
		for _, err := range single(other) {
			if !slices.ContainsFunc(unread, func(f fault) bool { return f.named(err) }) {
				add(err)
			}
		}
	}
	return errors.Join(errs...)
}

// named reports whether an error names the setting.
func (f fault) named(err error) bool {
	return f.name != "" && regexp.MustCompile(regexp.QuoteMeta(f.name)+`\b`).MatchString(err.Error())
}
