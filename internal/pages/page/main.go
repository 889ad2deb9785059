//go:build unix

// Command page reads a page of the documentation for scripts. `make newcomer` runs it in a
// minimal system.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/wirefence/wirefence/internal/pages"
)

const usage = `usage:
  page show FILE SECTION LANGUAGE NUMBER
      print a block of the section: of those in the language the first (1), the second, ...
  page type FILE [FROM=TO ...]
      type the page's commands into terminals that begin in this folder with this
      environment, and compare what they print; TO is typed where the page has FROM`

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 5 && args[0] == "show":
		err = show(args[1], args[2], args[3], args[4])
	case len(args) >= 2 && args[0] == "type":
		err = follow(args[1], args[2:])
	default:
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func show(file, section, language, number string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	n := 0
	for _, b := range pages.Blocks(string(page)) {
		if b.Section == section && b.Language == language {
			if n++; strconv.Itoa(n) == number {
				fmt.Print(b.Text)
				return nil
			}
		}
	}
	return fmt.Errorf("%s has %d blocks of %s in the section %q, not %s", file, n, language, section, number)
}

// follow prints each command that has ended, with its number and the seconds since the
// first began, and with the error if the page shows one.
func follow(file string, pairs []string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	steps, err := pages.Steps(string(page))
	if err != nil {
		return err
	}
	if len(steps) == 0 {
		return fmt.Errorf("%s has no commands", file)
	}
	replace := map[string]string{}
	for _, pair := range pairs {
		from, to, found := strings.Cut(pair, "=")
		if !found {
			return fmt.Errorf("%q is not of the form FROM=TO", pair)
		}
		replace[from] = to
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	number, began := 0, time.Now()
	walk := pages.Walk{Dir: ".", Env: os.Environ(), Replace: replace, Done: func(step pages.Step) {
		number++
		input, _, _ := strings.Cut(step.Input, "\n")
		fmt.Printf("%3d %7.1f s  %s  %s\n", number, time.Since(began).Seconds(), step.Terminal, input)
		if len(step.Want) > 0 && strings.HasPrefix(step.Want[0], "ERROR:") {
			fmt.Println("                " + step.Want[0])
		}
	}}
	if err := walk.Run(ctx, steps); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &used); err != nil {
		return err
	}
	fmt.Printf("processor time: %.0f s\n", time.Duration(used.Utime.Nano()+used.Stime.Nano()).Seconds())
	return nil
}
