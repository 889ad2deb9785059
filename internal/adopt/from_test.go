package adopt

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseFrom(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                   "",
		"advisory:42=orders": "advisory:42=orders",
		"advisory:-9223372036854775808=orders,advisory:7,42=jobs": "advisory:-9223372036854775808=orders advisory:7,42=jobs",
		"row:shedlock(report)=report:daily":                       "row:shedlock(report)=report:daily",
		"kubernetes:default/my-lease.v1=leader, redis:locks:a=b":  "kubernetes:default/my-lease.v1=leader redis:locks:a=b",
		"redis:a,b=x,redis:{c}:d=y%2Cz":                           "redis:a,b=x redis:{c}:d=y%2Cz",
		"redis:a=b=c":                                             "redis:a=b=c",
	} {
		from, err := ParseFrom(text)
		var got []string
		for _, l := range from {
			got = append(got, l.String()+"="+l.Resource.Encode())
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
	from, err := ParseFrom("advisory:7,42=a,row:c(acme:17)=b,kubernetes:n/m=c,redis:k=d")
	if err != nil || fmt.Sprintln(from[0].Numbers, from[1].Space, from[1].Name, from[2].Space, from[2].Name, from.Of(Redis)) != "[7 42] c acme:17 n m [redis:k]\n" {
		t.Errorf("%v, %v", from, err)
	}
}

func TestParseFromRefuses(t *testing.T) {
	t.Parallel()
	many := strings.Builder{}
	for i := range 33 {
		fmt.Fprintf(&many, "redis:k%d=r%d,", i, i)
	}
	for text, want := range map[string]string{
		"redis:a":                              "no resource",
		"redis:a,redis:b=c":                    `"redis:a" has no resource`,
		"redis:a=":                             "isn't a resource",
		"redis:a=b c":                          "isn't a resource",
		"redis:=b":                             "key in Redis is missing",
		"mysql:a=b":                            "a lock is advisory:42",
		"redis:a=b,":                           "ends in a comma",
		"redis:a=b,redis:a=c":                  "redis:a is named twice",
		"redis:a=b,advisory:1=b":               "both for the resource",
		"advisory:1,2,3=b":                     "one integer of 64 bits, or two of 32",
		"advisory:2147483648,1=b":              "two of 32",
		"advisory:x=b":                         "one integer",
		"row:job=b":                            "CLASS(KEY)",
		"row:Job(1)=b":                         "class",
		"kubernetes:lease=b":                   "NAMESPACE/NAME",
		"kubernetes:N/m=b":                     "NAMESPACE/NAME",
		strings.TrimSuffix(many.String(), ","): "names 33 locks",
	} {
		if from, err := ParseFrom(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want %q", text, from, err, want)
		}
	}
}
