package deploy

import (
	"slices"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// dockerfileMisses looks at the last stage, which is what runs, and at how the
// one before it builds.
func dockerfileMisses(text string) (m misses) {
	parsed, err := parser.Parse(strings.NewReader(text))
	if err != nil {
		return misses{"it can't be parsed: " + err.Error()}
	}
	var base, user string
	var entrypoint, health *parser.Node
	static := false
	for _, node := range parsed.AST.Children {
		switch strings.ToUpper(node.Value) {
		case "FROM":
			base, user, entrypoint, health = node.Next.Value, "", nil, nil
			m.want(base == "scratch" || strings.Contains(base, ":"), "the image %s has no tag", base)
		case "RUN":
			static = static || strings.Contains(node.Original, "CGO_ENABLED=0")
		case "USER":
			user = node.Next.Value
		case "ENTRYPOINT":
			entrypoint = node
		case "HEALTHCHECK":
			health = node
		}
	}
	m.want(base == "scratch", "it is not built on scratch")
	m.want(static, "the binary is not static")
	// Kubernetes can verify runAsNonRoot of a numeric user only.
	id, _, _ := strings.Cut(user, ":")
	n, err := strconv.Atoi(id)
	m.want(user != "" && (n != 0 || err != nil), "it runs as root")
	m.want(user == "" || err == nil, "the user is not a number")
	if entrypoint == nil || health == nil {
		return append(m, "there is no ENTRYPOINT, or no HEALTHCHECK")
	}
	m.want(entrypoint.Attributes["json"], "ENTRYPOINT needs a shell")
	m.want(entrypoint.Next.Value == "/wirefence", "ENTRYPOINT is %s", entrypoint.Next.Value)
	m.want(health.Attributes["json"], "HEALTHCHECK needs a shell")
	for _, flag := range health.Flags {
		m.want(strings.Contains(flag, "="), "it can't be parsed: %s", flag)
	}
	var words []string
	for word := health.Next; word != nil; word = word.Next {
		words = append(words, word.Value)
	}
	m.want(slices.Equal(words, []string{"CMD", "/wirefence", "status", "--ready"}), "HEALTHCHECK is %s", words)
	return m
}
