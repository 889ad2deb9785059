package conformance

import (
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// testCase is an entry of cases.json. Its steps are about one resource.
type testCase struct {
	Name     string
	Resource string   // default: one that no other case has
	Only     []string // the languages that it is for; default all
	OverHTTP bool     `json:"over_http"` // it isn't for leases by SQL
	Because  string   // why it is not for others
	Steps    []step
}

// step has a client do something, waits for what one does in the background, or changes
// the world.
type step struct {
	Do         string
	As         string // the client, default a
	Background bool
	Await      string
	World      string
	Save       string // under which what came is kept
	Want       map[string]any

	fields map[string]any // all of it, as a client is told
}

func (s *step) UnmarshalJSON(text []byte) error {
	type plain step
	if err := json.Unmarshal(text, (*plain)(s)); err != nil {
		return err
	}
	return json.Unmarshal(text, &s.fields)
}

func (s step) text(field string) string {
	value, _ := s.fields[field].(string)
	return value
}

func (s step) number(field string) float64 {
	value, _ := s.fields[field].(float64)
	return value
}

// client is what a case has do things. A step's outcome is an object; finish waits for what
// begin began.
type client interface {
	begin(t *testing.T, s step)
	finish(t *testing.T) map[string]any
}

func readCases(t *testing.T) (all []testCase) {
	t.Helper()
	text, err := os.ReadFile("cases.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// Every client does in each case what the table says.
func TestCases(t *testing.T) {
	for language, launch := range map[string]func(t *testing.T, w *world, name string) client{
		"python": launchPython, "typescript": launchTypeScript, "go": launchGo,
		"python by SQL": launchPython, "python by SQL with psycopg2": launchPsycopg2, "typescript by SQL": launchTypeScript,
		"typescript by SQL with postgres.js": launchPostgresJS, "rust by SQL": launchRust,
	} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			w := newWorldFor(t, language)
			language, _, _ := strings.Cut(language, " by ")
			for _, name := range []string{"a", "b"} {
				w.clients[name] = launch(t, w, name)
			}
			for i, c := range readCases(t) {
				if c.Only != nil && !slices.Contains(c.Only, language) || c.OverHTTP && w.bySQL {
					if c.Because == "" {
						t.Errorf("%s: no word on why it isn't for all", c.Name)
					}
					continue
				}
				if c.Resource == "" {
					c.Resource = fmt.Sprintf("case-%d", i)
				}
				if !t.Run(c.Name, func(t *testing.T) { w.play(t, c) }) {
					return // an answer may be outstanding
				}
			}
		})
	}
}

func (w *world) play(t *testing.T, c testCase) {
	for _, l := range w.links {
		l.Restore()
	}
	saved := map[string]map[string]any{}
	for i, s := range c.Steps {
		switch name, given := s.fields["resource"].(string); {
		case !given:
			s.fields["resource"] = c.Resource
		case name == "256 x":
			s.fields["resource"] = strings.Repeat("x", 256)
		}
		as := max(s.As, s.Await)
		if as == "" {
			as = "a"
		}
		who := w.clients[as]
		var got map[string]any
		switch {
		case s.World != "":
			w.change(t, s)
			continue
		case s.Await != "":
			got = who.finish(t)
		default:
			who.begin(t, s)
			if s.Background {
				continue
			}
			got = who.finish(t)
		}
		for field, want := range s.Want {
			if err := match(got[field], want, c.Resource, saved); err != nil {
				t.Fatalf("step %d, %s %s: %s: %v, in %v", i+1, as, s.Do+s.Await, field, err, got)
			}
		}
		if len(s.Want) == 0 && s.Want == nil {
			t.Fatalf("step %d wants nothing", i+1)
		}
		if s.Save != "" {
			saved[s.Save] = got
		}
	}
}

// match holds what came against what is wanted: a value, or an object of conditions. {r} is
// the resource's name.
func match(got, want any, resource string, saved map[string]map[string]any) error {
	conditions, ok := want.(map[string]any)
	if !ok {
		if text, ok := want.(string); ok {
			want = strings.ReplaceAll(text, "{r}", resource)
		}
		if got != want {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return nil
	}
	for name, bound := range conditions {
		good := false
		switch name {
		case "matches":
			pattern := strings.ReplaceAll(bound.(string), "{r}", regexp.QuoteMeta(resource))
			text, isText := got.(string)
			good = isText && regexp.MustCompile(pattern).MatchString(text)
		case "one_of":
			good = slices.Contains(bound.([]any), got)
		case "at_least":
			good = compare(got, bound, func(order int) bool { return order >= 0 })
		case "at_most":
			good = compare(got, bound, func(order int) bool { return order <= 0 })
		case "more_than":
			from, field, _ := strings.Cut(bound.(string), ".")
			bound = saved[from][field]
			good = compare(got, bound, func(order int) bool { return order > 0 })
		default:
			return fmt.Errorf("there is no condition %q", name)
		}
		if !good {
			return fmt.Errorf("got %v, want %s %v", got, name, bound)
		}
	}
	return nil
}

// compare compares numbers, or texts of numbers. What is no number fails.
func compare(a, b any, holds func(order int) bool) bool {
	x, first := new(big.Rat).SetString(fmt.Sprint(a))
	y, second := new(big.Rat).SetString(fmt.Sprint(b))
	return first && second && holds(x.Cmp(y))
}

func TestMatch(t *testing.T) {
	t.Parallel()
	saved := map[string]map[string]any{"first": {"token": "9007199254740993"}}
	for _, c := range []struct {
		got  any
		want string
		good bool
	}{
		{true, `true`, true}, {nil, `true`, false}, {"r=34", `"{r}=34"`, true}, {"r=35", `"{r}=34"`, false},
		{"r=34", `{"matches": "^{r}=[0-9]+$"}`, true}, {nil, `{"matches": ""}`, false},
		{1.5, `{"at_least": 1, "at_most": 2}`, true}, {2.5, `{"at_least": 1, "at_most": 2}`, false}, {nil, `{"at_most": 2}`, false},
		{"9007199254740994", `{"more_than": "first.token"}`, true}, {"9007199254740993", `{"more_than": "first.token"}`, false},
		{"lost", `{"one_of": ["lost"]}`, true}, {nil, `{"one_of": ["lost"]}`, false}, {1.0, `{"unknown": 1}`, false},
	} {
		var want any
		if err := json.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		if err := match(c.got, want, "r", saved); (err == nil) != c.good {
			t.Errorf("%v against %s: %v", c.got, c.want, err)
		}
	}
}
