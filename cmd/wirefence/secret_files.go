package main

import (
	"fmt"
	"os"
	"reflect"

	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/internal/connstring"
	"github.com/wirefence/wirefence/internal/manual"
)

// A setting that may hold a password can be in a file, whose name the variable or the flag
// with _FILE behind it gives. Other processes can often read an environment or a command
// line, and platforms mount secrets as files.

func mayBeFile(f reflect.StructField) bool { return f.Tag.Get("file") != "" }

func addFileFlag(c *cobra.Command, f reflect.StructField) {
	name := flagName(f) + "-file"
	c.Flags().Var(&flagValue{kind: "file"}, name, "file with the value of --"+flagName(f))
	manual.Describe(c.Flags().Lookup(name), f.Tag.Get("group"), variable(f)+"_FILE")
}

// readFile puts what a file holds in the place of the variable. Flags win over variables,
// whichever of the two forms they have; both forms at once contradict each other. It returns
// the file's name, "" for none.
func readFile(c *cobra.Command, f reflect.StructField, values map[string]string) (string, error) {
	name, flag := variable(f), flagOnly+flagName(f)
	given, file := c.Flags().Changed(flagName(f)), c.Flags().Changed(flagName(f)+"-file")
	path, from := values[name+"_FILE"], name+"_FILE"
	switch {
	case given && file:
		return "", fmt.Errorf("%s and %s-file are both given: give one", flag, flag)
	case given:
		return "", nil
	case file:
		path, from = c.Flags().Lookup(flagName(f)+"-file").Value.String(), flag+"-file"
	case path == "":
		return "", nil
	case values[name] != "":
		return "", fmt.Errorf("%s and %s are both set: set one", name, from)
	}
	text, err := connstring.ReadFile(c.Context(), path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", from, err)
	}
	values[name] = text
	return path, nil
}

// renew lets a connection string of Wirefence's own, or each of several, take its user and
// password anew for each connection: from the file that held it, and from a command.
func renew(value reflect.Value, file, command string) {
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
		file = "" // a pipe is read once
	}
	if value.Kind() == reflect.String {
		value.SetString(connstring.Origin{File: file, Command: command}.Of(value.String()))
		return
	}
	for i := range value.Len() {
		value.Index(i).SetString(connstring.Origin{File: file, Entry: i, Command: command}.Of(value.Index(i).String()))
	}
}

// PasswordSettings are those of commands that connect as a role of Wirefence's own.
type PasswordSettings struct {
	PasswordCommand string `env:"WIREFENCE_PASSWORD_COMMAND" group:"Connections" type:"command" help:"shell command that prints the [password](#passwords-that-change) of connection strings without one, run for each new connection"`
}
