package config

import (
	"reflect"
	"strings"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

// Variable is an environment variable that sets one value.
type Variable struct {
	Name string
	Path string // in the document
}

// parentsPath is the setting that is required to find the project's file.
const parentsPath = "searchParents"

// Variables returns the environment variables, which the tags of Document name: NATS_MCP_<SETTING> for every setting,
// and those that the specification names. Of the variables of one setting a later one has precedence.
func Variables() []Variable { return variablesOf("", reflect.TypeFor[Document]()) }

func variablesOf(prefix string, t reflect.Type) (list []Variable) {
	for _, field := range reflect.VisibleFields(t) {
		path := prefix + field.Tag.Get("json")
		for name := range strings.FieldsSeq(field.Tag.Get("env")) {
			list = append(list, Variable{name, path})
		}
		if field.Type.Kind() == reflect.Struct {
			list = append(list, variablesOf(path+".", field.Type)...)
		}
	}
	return list
}

// readEnvironment applies the environment variables: those of one path, or if it is empty all but those of parentsPath.
// An empty variable counts as not set.
func (l *loader) readEnvironment(only string) {
	for _, v := range Variables() {
		text, ok := l.src.LookupEnv(v.Name)
		if !ok || text == "" || (only != "" && v.Path != only) || (only == "" && v.Path == parentsPath) {
			continue
		}
		if v.Path == "logging.level" {
			text = strings.ToUpper(text)
		}
		for _, p := range rawjson.DecodeText(v.Path, text, &l.config.Document) {
			l.problem(Origin{Name: v.Name}, p.Path, p.Message)
		}
		l.config.Origins[v.Path] = Origin{Layer: LayerEnvironment, Name: v.Name}
	}
}
