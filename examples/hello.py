"""The smallest job: a greeting for each name. Run it with ``python examples/hello.py``."""

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, RunnerContext, action


class Greeter(Agent):
    @action(InputEvent)
    def greet(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        times = ctx.short_term_memory.get("times", 0) + 1
        ctx.short_term_memory.set("times", times)
        return OutputEvent(output=f"hello {event.input} ({times})")


if __name__ == "__main__":
    env = AgentsExecutionEnvironment.get_execution_environment()
    greetings = env.from_list(["Ada", "Alan", "Ada"], key_selector=str).apply(Greeter()).to_list()
    env.execute("hello")
    print("\n".join(sorted(greetings)))
