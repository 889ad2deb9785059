package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"github.com/spf13/cobra"

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
// whichever of the two forms they have; both forms at once contradict each other.
func readFile(c *cobra.Command, f reflect.StructField, values map[string]string) error {
	name, flag := variable(f), flagOnly+flagName(f)
	given, file := c.Flags().Changed(flagName(f)), c.Flags().Changed(flagName(f)+"-file")
	path, from := values[name+"_FILE"], name+"_FILE"
	switch {
	case given && file:
		return fmt.Errorf("%s and %s-file are both given: give one", flag, flag)
	case given:
		return nil
	case file:
		path, from = c.Flags().Lookup(flagName(f)+"-file").Value.String(), flag+"-file"
	case path == "":
		return nil
	case values[name] != "":
		return fmt.Errorf("%s and %s are both set: set one", name, from)
	}
	text, err := readSecret(c.Context(), path)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	values[name] = strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	switch {
	case values[name] == "":
		return fmt.Errorf("%s: %s is empty", from, path)
	case strings.ContainsAny(values[name], "\n\x00"):
		return fmt.Errorf("%s: %s has more than one line", from, path)
	}
	return nil
}

// mostSecret is more than any setting is long, in bytes.
const mostSecret = 64 << 10

// readSecret reads a file until the context ends: a named pipe can be without a writer.
func readSecret(ctx context.Context, path string) ([]byte, error) {
	var text []byte
	var err error
	over := make(chan struct{})
	go func() {
		defer close(over)
		var file *os.File
		if file, err = os.Open(path); err != nil {
			return
		}
		defer file.Close()
		text, err = io.ReadAll(io.LimitReader(file, mostSecret+1))
	}()
	select {
	case <-over:
	case <-ctx.Done():
		return nil, fmt.Errorf("read %s: %w", path, context.Cause(ctx))
	}
	if len(text) > mostSecret {
		return nil, fmt.Errorf("%s has more than %d bytes, and holds no setting", path, mostSecret)
	}
	return text, err
}
