"""A client: an ordinary Flower app that returns its gradient and its loss; the mod sends k floats of the gradient."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from logistic_app.task import method, problem
from stepsize_opt.flower import compress_mod
from stepsize_opt.problems import Objective

app = ClientApp(mods=[compress_mod(lambda context: method(context.run_config["method"], context.run_config["plan"]))])


def part(context: Context) -> Objective:
    return problem(int(context.run_config["clients"])).clients[int(context.node_config["partition-id"])]


@app.train()
def train(message: Message, context: Context) -> Message:
    x, f = message.content["arrays"]["x"].numpy(), part(context)
    gradient = ArrayRecord({"x": Array(f.gradient(x[None])[0])})
    metrics = MetricRecord({"loss": float(f.value(x[None])[0])})
    return Message(RecordDict({"arrays": gradient, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    x = message.content["arrays"]["x"].numpy()
    metrics = MetricRecord({"loss": float(part(context).value(x[None])[0])})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
