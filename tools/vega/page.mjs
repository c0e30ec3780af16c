// What the page needs of Vega: no maps, no trees, no forces.
import * as encode from "vega-encode";
import * as transforms from "vega-transforms";
import * as viewTransforms from "vega-view-transforms";
import { transforms as registered } from "vega-dataflow";
import { extend } from "vega-util";

extend(registered, transforms, viewTransforms, encode);

export { expressionInterpreter } from "vega-interpreter";
export { compile } from "vega-lite";
export { parse } from "vega-parser";
export { View } from "vega-view";
