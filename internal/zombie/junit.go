package zombie

import (
	"encoding/xml"
	"io"
	"strings"
)

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Failure *junitProblem `xml:"failure"`
	Error   *junitProblem `xml:"error"`
}

type junitProblem struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// WriteJUnit writes the windows as test cases in JUnit's XML: a stale one fails, and one that isn't
// judged is an error. Values aren't in the names, so that a case has the same name in each run.
func (e *Exploration) WriteJUnit(w io.Writer, command []string) error {
	suite := junitSuite{Name: "wirefence zombie: " + strings.Join(command, " ")}
	add := func(name string) *junitCase {
		suite.Cases = append(suite.Cases, junitCase{Class: suite.Name, Name: literal.ReplaceAllString(name, "?")})
		suite.Tests++
		return &suite.Cases[len(suite.Cases)-1]
	}
	for _, window := range e.Windows {
		c := add(window.String())
		switch window.Shows {
		case ShowsStale:
			suite.Failures++
			c.Failure = &junitProblem{Message: "a run that goes on behind another's turn overwrites it"}
			if s := e.Schedule; s != nil && window.Ahead == s.Ahead && window.From <= s.Moment && s.Moment <= window.To {
				c.Failure.Text = s.String()
			}
		case Unjudged:
			suite.Errors++
			c.Error = &junitProblem{Message: window.Reason}
		}
	}
	if e.Verdict == Unknown && suite.Errors == 0 {
		suite.Errors++
		add("all moments").Error = &junitProblem{Message: e.Reason}
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	out := xml.NewEncoder(w)
	out.Indent("", "  ")
	return out.Encode(suite)
}

// String is a window for people.
func (w Window) String() string {
	from := "the start"
	if w.Behind != "" {
		from = w.Behind
	}
	return "from " + from + " to before " + w.Before
}
