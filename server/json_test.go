package server

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/epq-uring/epq-uring/engine"
)

// rebuild reads a value with the walker alone. Null members are left out by members.
func rebuild(t *testing.T, v value) any {
	t.Helper()
	var out any
	var err error
	switch v.kind() {
	case "an object":
		m := map[string]any{}
		err = v.members(func(key string, member value) error {
			m[key] = rebuild(t, member)
			return nil
		})
		out = m
	case "an array":
		l := []any{}
		err = v.items(func(_ int, item value) error {
			l = append(l, rebuild(t, item))
			return nil
		})
		out = l
	case "a string":
		out, err = v.text()
	case "a boolean":
		out, err = v.boolean()
	case "a number":
		out = json.Number(v.raw)
	}
	if err != nil {
		t.Fatal(v.path, err)
	}
	return out
}

// withoutNulls drops what members leaves out.
func withoutNulls(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if x == nil {
				delete(v, k)
			} else {
				withoutNulls(x)
			}
		}
	case []any:
		for _, x := range v {
			withoutNulls(x)
		}
	}
	return v
}

// FuzzWalk compares the walker with encoding/json; both body parsers must take or refuse anything.
func FuzzWalk(f *testing.F) {
	for _, s := range []string{
		`{}`, ` { } `, `{"a":[1,-2.5e3,"x\"\\\u00e9\ud83d",true,false,{"b":{}},[[]]], "c" : "d" }`, `{"a":null}`, `[]`, `{"\u0061":1,"a]}":"]}\""}`, `{"a":[ 1 , 2 ] , "b":{ "c" : 3 } }`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"prompt":[1,2],"stop":["a"],"logit_bias":{"1":2},"tools":[{}]}`, "{\"a\":1}\n{",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		v, err := parseObject(body)
		_, chatErr := parseChat(body, engine.Request{})
		_, completionErr := parseCompletion(body, engine.Request{}, 50)
		if err != nil {
			if chatErr == nil || completionErr == nil {
				t.Fatal("refused and taken")
			}
			return
		}
		got := rebuild(t, v)
		var want any
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		if err := d.Decode(&want); err != nil {
			t.Fatal(err)
		}
		if repeats(v) {
			return
		}
		if want = withoutNulls(want); !reflect.DeepEqual(got, want) {
			t.Fatalf("%s\ngot  %v\nwant %v", body, got, want)
		}
	})
}

// repeats reports whether some object has a key twice.
func repeats(v value) bool {
	found := false
	switch v.raw[0] {
	case '{':
		seen := map[string]bool{}
		_ = v.each(func(key string, member value) error { // fn fails never
			found = found || seen[key] || repeats(member)
			seen[key] = true
			return nil
		})
	case '[':
		_ = v.items(func(_ int, item value) error { // fn fails never
			found = found || repeats(item)
			return nil
		})
	}
	return found
}
